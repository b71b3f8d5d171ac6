package cilium

import (
	"maps"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// NodeAddress is one address of a node; Type "CiliumInternalIP" marks the router address.
type NodeAddress struct {
	Type string `json:"type"`
	IP   string `json:"ip"` // as written
}

// Node is a CiliumNode. Slices are never changed in place.
type Node struct {
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Created     int64             `json:"created,omitempty"`     // by the API server, in seconds since 1970; 0 when not known
	Annotations map[string]string `json:"annotations,omitempty"` // only annotations of Waggle, among them the record of the values that the agent wrote
	Addresses   []NodeAddress     `json:"addresses,omitempty"`
	PodCIDRs    []string          `json:"podCIDRs,omitempty"` // as written; may not be valid CIDRs
	HealthIPv4  string            `json:"healthIPv4,omitempty"`
	HealthIPv6  string            `json:"healthIPv6,omitempty"`
	// EncryptionKey is the index of the node's key, 1 to 255; 0: none, or not in this range.
	EncryptionKey uint8 `json:"encryptionKey,omitempty"`
}

// Key is the name.
func (n *Node) Key() string { return n.Name }

// Equal compares everything.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.UID == o.UID && n.Created == o.Created && n.HealthIPv4 == o.HealthIPv4 && n.HealthIPv6 == o.HealthIPv6 && n.EncryptionKey == o.EncryptionKey &&
		slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.PodCIDRs, o.PodCIDRs) && maps.Equal(n.Annotations, o.Annotations)
}

// TableHeader implements statedb.TableWritable.
func (*Node) TableHeader() []string { return []string{"CiliumNode", "PodCIDRs", "Addresses"} }

// TableRow implements statedb.TableWritable.
func (n *Node) TableRow() []string {
	addresses := make([]string, len(n.Addresses))
	for i, a := range n.Addresses {
		addresses[i] = a.Type + "=" + a.IP
	}
	return []string{n.Name, printable.Text(strings.Join(n.PodCIDRs, ",")), printable.Text(strings.Join(addresses, ","))}
}

var nodeIndex = indexes.Unique("name", indexes.String, (*Node).Key)

// NodeByName finds a row by its name.
var NodeByName = nodeIndex.Query

// NewNodeTable makes the table "cilium-nodes".
func NewNodeTable(db *statedb.DB) (statedb.RWTable[*Node], error) {
	return statedb.NewTable(db, "cilium-nodes", nodeIndex)
}
