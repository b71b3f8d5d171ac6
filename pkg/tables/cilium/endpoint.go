package cilium

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Endpoint is a CiliumEndpoint: a pod anywhere in the cluster, this node's own among them. There may be tens of
// thousands, so a row holds no more than the datapath needs. Slices are never changed in place.
type Endpoint struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Created   int64        `json:"created,omitempty"` // by the API server, in seconds since 1970; 0 when not known
	Identity  uint32       `json:"identity"`          // 0 when it has none yet
	Node      netip.Addr   `json:"node"`              // address of the pod's node; invalid when not known
	Addrs     []netip.Addr `json:"addrs,omitempty"`   // of the pod
	// Ports are the named ports of its containers. Of one name and protocol the first counts.
	Ports []k8s.ContainerPort `json:"ports,omitempty"`
	// Host names the node that wrote the object, from its label; empty when it has none.
	Host string `json:"host,omitempty"`
	// Written is the [Digest] of an object that this node writes; 0 for those of others.
	Written uint64 `json:"written,omitempty"`
}

// Key is "namespace/name".
func (e *Endpoint) Key() string { return e.Namespace + "/" + e.Name }

// Equal compares everything.
func (e *Endpoint) Equal(o *Endpoint) bool {
	return e.Namespace == o.Namespace && e.Name == o.Name && e.UID == o.UID && e.Created == o.Created && e.Identity == o.Identity && e.Node == o.Node && e.Written == o.Written &&
		e.Host == o.Host && slices.Equal(e.Addrs, o.Addrs) && slices.Equal(e.Ports, o.Ports)
}

// TableHeader implements statedb.TableWritable.
func (*Endpoint) TableHeader() []string {
	return []string{"CiliumEndpoint", "Identity", "Addresses", "Node"}
}

// TableRow implements statedb.TableWritable.
func (e *Endpoint) TableRow() []string {
	addrs := make([]string, len(e.Addrs))
	for i, a := range e.Addrs {
		addrs[i] = a.String()
	}
	node := "-"
	if e.Node.IsValid() {
		node = e.Node.String()
	}
	return []string{e.Key(), strconv.FormatUint(uint64(e.Identity), 10), strings.Join(addrs, ","), node}
}

var endpointIndex = statedb.Index[*Endpoint, string]{
	Name:       "name",
	FromObject: func(o *Endpoint) index.KeySet { return index.NewKeySet(index.String(o.Key())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// EndpointByName finds a row by "namespace/name".
var EndpointByName = endpointIndex.Query

// NewEndpointTable makes the table "cilium-endpoints". It has no index by address, which would take 0.3 kB for each pod of the cluster: package podclaims
// finds rows by their addresses.
func NewEndpointTable(db *statedb.DB) (statedb.RWTable[*Endpoint], error) {
	return statedb.NewTable(db, "cilium-endpoints", endpointIndex)
}
