// Package namedcidrs holds the address ranges in policies, each with its identity on this node.
package namedcidrs

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// CIDR is one range. An address has the identity of the longest matching range in addition to the identity of its endpoint.
type CIDR struct {
	Prefix   netip.Prefix `json:"prefix"`   // masked
	Identity uint32       `json:"identity"` // of Cilium's scope of CIDRs, from 16777217; valid only on this node
	// Retired means that no policy names the range any longer. It is removed from the map first, then from the policies.
	Retired bool              `json:"retired,omitempty"`
	Status  reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (c *CIDR) Clone() *CIDR { d := *c; return &d }

// Equal compares the desired part.
func (c *CIDR) Equal(o *CIDR) bool {
	return c.Prefix == o.Prefix && c.Identity == o.Identity && c.Retired == o.Retired
}

// GetStatus returns the status of the row.
func (c *CIDR) GetStatus() reconciler.Status { return c.Status }

// WithStatus sets the status of a clone.
func (c *CIDR) WithStatus(s reconciler.Status) *CIDR { c.Status = s; return c }

// TableHeader implements statedb.TableWritable.
func (*CIDR) TableHeader() []string { return []string{"Prefix", "Identity", "Retired", "Status"} }

// TableRow implements statedb.TableWritable.
func (c *CIDR) TableRow() []string {
	return []string{c.Prefix.String(), strconv.FormatUint(uint64(c.Identity), 10), strconv.FormatBool(c.Retired), c.Status.Kind.String()}
}

var prefixIndex = indexes.Unique("prefix", indexes.Prefix, func(c *CIDR) netip.Prefix { return c.Prefix })
var identityIndex = indexes.Unique("identity", indexes.Uint32, func(c *CIDR) uint32 { return c.Identity })

// Queries.
var (
	ByPrefix   = prefixIndex.Query
	ByIdentity = identityIndex.Query
)

// NewTable makes the table "named-cidrs".
func NewTable(db *statedb.DB) (statedb.RWTable[*CIDR], error) {
	return statedb.NewTable(db, "named-cidrs", prefixIndex, identityIndex)
}
