// Package masquerade holds the desired contents of two maps that control how packets leave the node: netdevs (by ifindex) and unmasqueraded (by
// prefix).
package masquerade

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
)

// Netdev is one device that leads out of the node.
type Netdev struct {
	Index          int               `json:"index"` // ifindex
	Name           string            `json:"name"`
	IPv4           netip.Addr        `json:"ipv4"` // source address for packets that the node sends there for others; invalid without one
	IPv6           netip.Addr        `json:"ipv6"`
	MasqueradeIPv4 bool              `json:"masqueradeIPv4"` // pods are masqueraded as well, not only clients of services
	MasqueradeIPv6 bool              `json:"masqueradeIPv6"`
	Status         reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (n *Netdev) Clone() *Netdev { c := *n; return &c }

// Equal compares the desired part.
func (n *Netdev) Equal(o *Netdev) bool {
	a, b := *n, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// GetStatus returns the status of the row.
func (n *Netdev) GetStatus() reconciler.Status { return n.Status }

// WithStatus sets the status of a clone.
func (n *Netdev) WithStatus(s reconciler.Status) *Netdev { n.Status = s; return n }

// TableHeader implements statedb.TableWritable.
func (*Netdev) TableHeader() []string {
	return []string{"Index", "Name", "IPv4", "IPv6", "MasqueradeIPv4", "MasqueradeIPv6", "Status"}
}

// TableRow implements statedb.TableWritable.
func (n *Netdev) TableRow() []string {
	return []string{strconv.Itoa(n.Index), n.Name, column.Addr(n.IPv4), column.Addr(n.IPv6), strconv.FormatBool(n.MasqueradeIPv4),
		strconv.FormatBool(n.MasqueradeIPv6), n.Status.Kind.String()}
}

var netdevIndex = indexes.Unique("id", indexes.Int, func(n *Netdev) int { return n.Index })

// NewNetdevTable makes the table "netdevs".
func NewNetdevTable(db *statedb.DB) (statedb.RWTable[*Netdev], error) {
	return statedb.NewTable(db, "netdevs", netdevIndex)
}
