// Package k8s holds the rows of Kubernetes objects, trimmed to the fields that the agent reads.
package k8s

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// ContainerPort is a named port of a container.
type ContainerPort struct {
	Name     string `json:"name"`     // never empty
	Protocol string `json:"protocol"` // "TCP", "UDP" or "SCTP"
	Number   uint16 `json:"number"`
}

// HostPort is a port of the node that forwards to a container.
type HostPort struct {
	Addr      netip.Addr `json:"addr"`     // of the node; invalid: all addresses
	Protocol  string     `json:"protocol"` // "TCP", "UDP" or "SCTP"
	Port      uint16     `json:"port"`
	Container uint16     `json:"container"` // the port of the container
}

// Pod is a pod of this node. Maps and slices are never changed in place.
type Pod struct {
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	UID            string            `json:"uid,omitempty"`
	StaticUID      string            `json:"staticUID,omitempty"` // of a static pod: the UID that the runtime uses; the object has another one
	NodeName       string            `json:"nodeName,omitempty"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	HostNetwork    bool              `json:"hostNetwork,omitempty"`
	Phase          string            `json:"phase,omitempty"` // "Running" and so on; empty if unknown
	Labels         map[string]string `json:"labels,omitempty"`
	Annotations    map[string]string `json:"annotations,omitempty"`
	Created        int64             `json:"created,omitempty"` // Unix time in seconds; 0 when not known
	PodIPs         []netip.Addr      `json:"podIPs,omitempty"`  // from the status; empty before it is known
	Ports          []ContainerPort   `json:"ports,omitempty"`   // named ports, one of each name and protocol
	HostPorts      []HostPort        `json:"hostPorts,omitempty"`
}

// Ended reports whether all containers have ended permanently, so that the pod no longer replies.
func (p *Pod) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Key is "namespace/name".
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// HasUID reports whether a UID from a runtime may be the UID of the pod. It returns true if either is missing: some runtimes do not pass a UID, and
// some rows have none.
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

var podIndex = indexes.Unique("name", indexes.String, (*Pod).Key)

// PodByName finds a pod by "namespace/name".
var PodByName = podIndex.Query

// NewPodTable makes the table "k8s-pods".
func NewPodTable(db *statedb.DB) (statedb.RWTable[*Pod], error) {
	return statedb.NewTable(db, "k8s-pods", podIndex)
}
