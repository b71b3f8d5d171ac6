package k8s

import (
	"maps"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// NodeAddress is one address of a node as Kubernetes reports it; Type "Hostname" and the DNS types hold names.
type NodeAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// PathsCondition is the type of the Node condition that reports whether paths from the node to other nodes lose packets.
const PathsCondition = "WaggleNetworkPathsDegraded"

// Node is any node of the cluster. Maps and slices are never changed in place.
type Node struct {
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Created     int64             `json:"created,omitempty"` // by the API server, in seconds since 1970; 0 when not known
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	PodCIDR     string            `json:"podCIDR,omitempty"`  // spec.podCIDR as written; may not be a valid CIDR
	PodCIDRs    []string          `json:"podCIDRs,omitempty"` // spec.podCIDRs as written
	Addresses   []NodeAddress     `json:"addresses,omitempty"`
	TaintKeys   []string          `json:"taintKeys,omitempty"` // of spec.taints, in its order
	// NetworkUnavailable is the status of the condition with this name: "True", "False" or "Unknown"; empty without one.
	NetworkUnavailable string `json:"networkUnavailable,omitempty"`
	// PathsDegraded is the status of [PathsCondition], which the agent of the node writes.
	PathsDegraded string `json:"pathsDegraded,omitempty"`
}

// Key is the name.
func (n *Node) Key() string { return n.Name }

// Equal compares everything.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.UID == o.UID && n.Created == o.Created && n.PodCIDR == o.PodCIDR &&
		n.NetworkUnavailable == o.NetworkUnavailable && n.PathsDegraded == o.PathsDegraded && slices.Equal(n.TaintKeys, o.TaintKeys) && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		slices.Equal(n.Addresses, o.Addresses) && maps.Equal(n.Labels, o.Labels) && maps.Equal(n.Annotations, o.Annotations)
}

// TableHeader implements statedb.TableWritable.
func (*Node) TableHeader() []string {
	return []string{"Node", "UID", "PodCIDR", "PodCIDRs", "Addresses"}
}

// TableRow implements statedb.TableWritable.
func (n *Node) TableRow() []string {
	addresses := make([]string, len(n.Addresses))
	for i, a := range n.Addresses {
		addresses[i] = a.Type + "=" + a.Address
	}
	return []string{n.Name, printable.Text(n.UID), printable.Text(n.PodCIDR), printable.Text(strings.Join(n.PodCIDRs, ",")),
		printable.Text(strings.Join(addresses, ","))}
}

var nodeIndex = indexes.Unique("name", indexes.String, func(n *Node) string { return n.Name })

// NodeByName finds a node.
var NodeByName = nodeIndex.Query

// NewNodeTable makes the table "k8s-nodes".
func NewNodeTable(db *statedb.DB) (statedb.RWTable[*Node], error) {
	return statedb.NewTable(db, "k8s-nodes", nodeIndex)
}
