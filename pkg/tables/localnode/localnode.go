// Package localnode holds the one row that describes this node to the other cells and nodes.
package localnode

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Family holds the ranges and addresses of this node in one address family. The zero value means that the family is off or not known yet.
type Family struct {
	AllocRange netip.Prefix `json:"allocRange"` // addresses for pods
	Router     netip.Addr   `json:"router"`     // address of waggle_host, the gateway of all pods of this node
	Health     netip.Addr   `json:"health"`     // second address of waggle_host, for probes of other nodes; invalid without one
	NodeIP     netip.Addr   `json:"nodeIP"`     // primary address of the node; invalid without one
}

// LocalNode describes this node.
type LocalNode struct {
	Name      string       `json:"name"`
	IPv4      Family       `json:"ipv4"`
	IPv6      Family       `json:"ipv6"`
	Addresses []netip.Addr `json:"addresses"` // all addresses of the node, sorted
	// Ready reports whether every enabled family has a range and a router address.
	Ready bool `json:"ready"`
	// WaitingFor names the missing values while Ready is false.
	WaitingFor string `json:"waitingFor,omitempty"`
}

// Equal compares everything.
func (n *LocalNode) Equal(o *LocalNode) bool {
	return n.Name == o.Name && n.IPv4 == o.IPv4 && n.IPv6 == o.IPv6 && n.Ready == o.Ready &&
		n.WaitingFor == o.WaitingFor && slices.Equal(n.Addresses, o.Addresses)
}

// TableHeader implements statedb.TableWritable.
func (*LocalNode) TableHeader() []string {
	return []string{"Name", "IPv4Range", "IPv4Router", "IPv6Range", "IPv6Router", "Health", "Addresses", "WaitingFor"}
}

// TableRow implements statedb.TableWritable.
func (n *LocalNode) TableRow() []string {
	addrs := make([]string, len(n.Addresses))
	for i, a := range n.Addresses {
		addrs[i] = a.String()
	}
	var health []string
	for _, addr := range []netip.Addr{n.IPv4.Health, n.IPv6.Health} {
		if addr.IsValid() {
			health = append(health, addr.String())
		}
	}
	return []string{n.Name, show(n.IPv4.AllocRange), show(n.IPv4.Router), show(n.IPv6.AllocRange), show(n.IPv6.Router),
		strings.Join(health, ","), strings.Join(addrs, ","), n.WaitingFor}
}

func show(v interface {
	IsValid() bool
	String() string
}) string {
	if !v.IsValid() {
		return "-"
	}
	return v.String()
}

var nameIndex = indexes.Unique("name", indexes.String, func(n *LocalNode) string { return n.Name })

// ByName finds the row; there is at most one.
var ByName = nameIndex.Query

// NewTable makes the table "local-node".
func NewTable(db *statedb.DB) (statedb.RWTable[*LocalNode], error) {
	return statedb.NewTable(db, "local-node", nameIndex)
}
