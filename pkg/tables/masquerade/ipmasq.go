package masquerade

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Origins of a prefix of the ip-masq-agent.
const (
	FromFile      = "file"       // its nonMasqueradeCIDRs
	FromDefault   = "default"    // there is no file, or it is empty
	FromLinkLocal = "link-local" // the file does not request masquerading of link-local addresses
)

// IPMasq is a prefix that the configuration of the ip-masq-agent excludes. Rows are small and held by value.
type IPMasq struct {
	Prefix netip.Prefix `json:"prefix"` // masked
	From   string       `json:"from"`   // one of the constants
}

// TableHeader implements statedb.TableWritable.
func (IPMasq) TableHeader() []string { return []string{"Prefix", "From"} }

// TableRow implements statedb.TableWritable.
func (m IPMasq) TableRow() []string { return []string{m.Prefix.String(), m.From} }

var ipMasqIndex = indexes.Unique("prefix", indexes.Prefix, func(m IPMasq) netip.Prefix { return m.Prefix })

// NewIPMasqTable makes the table "ip-masq-agent".
func NewIPMasqTable(db *statedb.DB) (statedb.RWTable[IPMasq], error) {
	return statedb.NewTable(db, "ip-masq-agent", ipMasqIndex)
}
