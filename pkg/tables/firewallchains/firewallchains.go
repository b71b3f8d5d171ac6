// Package firewallchains defines the table of the nftables chains of this node that drop packets of pods.
package firewallchains

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Drops says which packets of pods a chain drops.
type Drops string

// Kinds of packets.
const (
	All     Drops = "all"     // also the first packet of a connection
	Invalid Drops = "invalid" // only packets in the conntrack state INVALID
)

// Chain is one row. It is never changed in place.
type Chain struct {
	Name  string `json:"name"` // a phrase with family, table and chain
	Drops Drops  `json:"drops"`
}

// TableHeader implements statedb.TableWritable.
func (Chain) TableHeader() []string { return []string{"Name", "Drops"} }

// TableRow implements statedb.TableWritable.
func (c Chain) TableRow() []string { return []string{printable.Text(c.Name), string(c.Drops)} }

var nameIndex = indexes.Unique("name", indexes.String, func(c Chain) string { return c.Name })

// NewTable makes the table "firewall-chains".
func NewTable(db *statedb.DB) (statedb.RWTable[Chain], error) {
	return statedb.NewTable(db, "firewall-chains", nameIndex)
}
