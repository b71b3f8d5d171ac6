// Package k8s holds the rows that stand for Kubernetes objects, trimmed to what the agent reads.
package k8s

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// ContainerPort is a port of a container that has a name.
type ContainerPort struct {
	Name     string `json:"name"`     // never empty
	Protocol string `json:"protocol"` // "TCP", "UDP" or "SCTP"
	Number   uint16 `json:"number"`
}

// HostPort is a port of the node that leads to a container.
type HostPort struct {
	Addr      netip.Addr `json:"addr"`     // of the node; invalid for all
	Protocol  string     `json:"protocol"` // "TCP", "UDP" or "SCTP"
	Port      uint16     `json:"port"`
	Container uint16     `json:"container"` // the port of the container
}

// Pod is a pod of this node. Maps and slices are never changed in place.
type Pod struct {
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	UID            string            `json:"uid,omitempty"`
	StaticUID      string            `json:"staticUID,omitempty"` // that the runtime knows it by, of a static pod; the object has another
	NodeName       string            `json:"nodeName,omitempty"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	HostNetwork    bool              `json:"hostNetwork,omitempty"`
	Phase          string            `json:"phase,omitempty"` // "Running" and so on; empty when not known
	Labels         map[string]string `json:"labels,omitempty"`
	Annotations    map[string]string `json:"annotations,omitempty"`
	Created        int64             `json:"created,omitempty"` // Unix time in seconds; 0 when not known
	PodIPs         []netip.Addr      `json:"podIPs,omitempty"`  // from the status; empty before it is known
	Ports          []ContainerPort   `json:"ports,omitempty"`   // those with a name, one of each name and protocol
	HostPorts      []HostPort        `json:"hostPorts,omitempty"`
}

// Ended tells whether all containers have ended for good, so that nobody answers any more.
func (p *Pod) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Key is "namespace/name".
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// HasUID tells whether a runtime's UID may be the pod's. Not every runtime passes it on, and not every row has it.
func (p *Pod) HasUID(uid string) bool {
	return uid == "" || p.UID == "" || uid == p.UID || uid == p.StaticUID
}

// Equal compares everything.
func (p *Pod) Equal(o *Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.UID == o.UID && p.StaticUID == o.StaticUID && p.NodeName == o.NodeName &&
		p.ServiceAccount == o.ServiceAccount && p.HostNetwork == o.HostNetwork && p.Phase == o.Phase && maps.Equal(p.Labels, o.Labels) &&
		maps.Equal(p.Annotations, o.Annotations) && slices.Equal(p.PodIPs, o.PodIPs) &&
		slices.Equal(p.Ports, o.Ports) && p.Created == o.Created && slices.Equal(p.HostPorts, o.HostPorts)
}

// TableHeader implements statedb.TableWritable.
func (*Pod) TableHeader() []string { return []string{"Pod", "UID", "Node", "HostNetwork"} }

// TableRow implements statedb.TableWritable.
func (p *Pod) TableRow() []string {
	return []string{p.Key(), printable.Text(p.UID), p.NodeName, strconv.FormatBool(p.HostNetwork)}
}

var podIndex = statedb.Index[*Pod, string]{
	Name:       "name",
	FromObject: func(p *Pod) index.KeySet { return index.NewKeySet(index.String(p.Key())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// PodByName finds a pod by "namespace/name".
var PodByName = podIndex.Query

// NewPodTable makes the table "k8s-pods".
func NewPodTable(db *statedb.DB) (statedb.RWTable[*Pod], error) {
	return statedb.NewTable(db, "k8s-pods", podIndex)
}
