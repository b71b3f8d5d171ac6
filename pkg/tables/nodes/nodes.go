// Package nodes defines the table of the cluster's nodes: their addresses, their pod ranges, and claims that were rejected because another node owns
// the address or range.
package nodes

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Source is the kind of the object that describes a node.
type Source string

// Sources, with the names that Cilium's API uses.
const (
	Local      Source = "local"           // this node
	Kubernetes Source = "kubernetes"      // a Node
	CiliumNode Source = "custom-resource" // a CiliumNode, with or without a Node
	Removed    Source = "removed"         // no object: they were deleted a short time ago, and containers of the node may still run
)

// Types of addresses, as Kubernetes and Cilium write them.
const (
	InternalIP       = "InternalIP"
	ExternalIP       = "ExternalIP"
	CiliumInternalIP = "CiliumInternalIP" // of the pod gateway device
	HealthIP         = "HealthIP"         // answers health probes; from spec.health of a CiliumNode
)

// Address is one address of a node.
type Address struct {
	Type string     `json:"type"`
	Addr netip.Addr `json:"addr"`
}

// Refusal is a rejected claim of a node.
type Refusal struct {
	Claim string `json:"claim"` // address or range, as written in the object
	Why   string `json:"why"`
	By    string `json:"by,omitempty"` // the owner, when another node owns it
}

// Node is one row. Slices are never changed in place.
type Node struct {
	Name      string         `json:"name"`
	UID       string         `json:"uid,omitempty"`
	Source    Source         `json:"source"`
	Addresses []Address      `json:"addresses,omitempty"` // of the Node first, then of the CiliumNode
	CIDRs     []netip.Prefix `json:"cidrs,omitempty"`     // pod ranges, masked: of the Node first, then of the CiliumNode, then previous ones
	FromNode  int            `json:"fromNode,omitempty"`  // number of ranges at the start of CIDRs that come from the Node, which agents cannot write
	Former    int            `json:"former,omitempty"`    // number of previous ranges at the end of CIDRs: pods of the node may still have addresses of them
	Receives  Receives       `json:"receives,omitzero"`   // also of the local node, as published to other nodes
	Refused   []Refusal      `json:"refused,omitempty"`
	// EncryptionKey is the index of the node's key, 1 to 255, from its CiliumNode; 0: none. The agent does not encrypt, and only displays it.
	EncryptionKey uint8 `json:"encryptionKey,omitempty"`
}

// Equal compares everything.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.UID == o.UID && n.Source == o.Source && slices.Equal(n.Addresses, o.Addresses) &&
		slices.Equal(n.CIDRs, o.CIDRs) && n.FromNode == o.FromNode && n.Former == o.Former && n.Receives == o.Receives && n.EncryptionKey == o.EncryptionKey && slices.Equal(n.Refused, o.Refused)
}

// Address returns the address by which other nodes reach the node in one family: the first InternalIP, otherwise the first ExternalIP. It is invalid if
// the node has none.
func (n *Node) Address(ipv6 bool) netip.Addr {
	for _, kind := range []string{InternalIP, ExternalIP} {
		if addr := n.Typed(kind, ipv6); addr.IsValid() {
			return addr
		}
	}
	return netip.Addr{}
}

// Typed returns the first address of a type in one family, invalid without one.
func (n *Node) Typed(kind string, ipv6 bool) netip.Addr {
	for _, a := range n.Addresses {
		if a.Type == kind && a.Addr.Is6() == ipv6 {
			return a.Addr
		}
	}
	return netip.Addr{}
}

// TableHeader implements statedb.TableWritable.
func (*Node) TableHeader() []string {
	return []string{"Name", "Source", "Addresses", "PodCIDRs", "Receives", "Refused"}
}

// TableRow implements statedb.TableWritable.
func (n *Node) TableRow() []string {
	var addrs, cidrs, rejected []string
	for _, a := range n.Addresses {
		addrs = append(addrs, a.Type+"="+a.Addr.String())
	}
	for i, p := range n.CIDRs {
		text := p.String()
		if i >= len(n.CIDRs)-n.Former {
			text += "(former)"
		}
		cidrs = append(cidrs, text)
	}
	for _, r := range n.Refused[:min(len(n.Refused), shownRefusals)] {
		rejected = append(rejected, r.String())
	}
	if more := len(n.Refused) - shownRefusals; more > 0 {
		rejected = append(rejected, strconv.Itoa(more)+" more")
	}
	return []string{printable.Text(n.Name), string(n.Source), strings.Join(addrs, ","), strings.Join(cidrs, ","), n.Receives.String(), strings.Join(rejected, "; ")}
}

// shownRefusals limits the rejected claims in a line of the table: an object may hold thousands.
const shownRefusals = 3

// String returns the rejected claim for operators.
func (r Refusal) String() string {
	text := printable.Text(r.Claim) + ": " + r.Why
	if r.By != "" {
		text += " of node " + printable.Text(r.By)
	}
	return text
}

var nameIndex = indexes.Unique("name", indexes.String, func(n *Node) string { return n.Name })

var addressIndex = statedb.Index[*Node, netip.Addr]{
	Name: "address",
	FromObject: func(n *Node) index.KeySet {
		keys := make([]index.Key, 0, len(n.Addresses))
		for i, a := range n.Addresses {
			if !slices.ContainsFunc(n.Addresses[:i], func(b Address) bool { return a.Addr == b.Addr }) { // one address may have two types
				keys = append(keys, index.NetIPAddr(a.Addr))
			}
		}
		return index.NewKeySet(keys...)
	},
	FromKey:    index.NetIPAddr,
	FromString: index.NetIPAddrString,
}

// ByName finds a node.
var ByName = nameIndex.Query

// CountExisting returns the number of nodes without the removed ones.
func CountExisting(txn statedb.ReadTxn, table statedb.Table[*Node]) (n int) {
	for row := range table.All(txn) {
		if row.Source != Removed {
			n++
		}
	}
	return n
}

// NewTable makes the table "nodes".
func NewTable(db *statedb.DB) (statedb.RWTable[*Node], error) {
	return statedb.NewTable(db, "nodes", nameIndex, addressIndex)
}
