// Package desiredroutes holds the routes that the agent wants in the kernel.
package desiredroutes

import (
	"cmp"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
)

// Protocol marks the agent's routes and rules in the kernel (rtm_protocol). Routes and rules with another number are foreign.
const Protocol = 87

// MainTable is the routing table of packets that match no rule with another table (RT_TABLE_MAIN, rtnetlink(7)).
const MainTable = 254

// LocalNode is the owner of the routes to the pod ranges of this node.
const LocalNode = "local-node"

// Route is one row.
type Route struct {
	Owner  string            `json:"owner"`  // the feature that wants it
	Table  int               `json:"table"`  // routing table; 254 is main
	Dst    netip.Prefix      `json:"dst"`    // masked
	Device string            `json:"device"` // interface name
	Gw     netip.Addr        `json:"gw"`     // invalid: directly on the link
	Src    netip.Addr        `json:"src"`    // preferred source; invalid: the kernel's choice
	MTU    int               `json:"mtu"`    // bytes; 0: the device's
	Scope  uint8             `json:"scope"`  // RT_SCOPE_*; 0 global, 253 link
	Metric int               `json:"metric"` // the kernel prefers smaller ones; 0: its default, 0 in IPv4 and 1024 in IPv6
	Status reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (r *Route) Clone() *Route { c := *r; return &c }

// Key returns the key for [ByKey].
func (r *Route) Key() string {
	key := strconv.Itoa(r.Table) + "/" + r.Dst.String()
	if r.Metric != 0 {
		key += "/" + strconv.Itoa(r.Metric)
	}
	return key
}

// ipv6Metric is the kernel's metric of IPv6 routes that specify none.
const ipv6Metric = 1024

// Priority returns the metric as the kernel shows it.
func (r *Route) Priority() int {
	if r.Dst.Addr().Is6() {
		return cmp.Or(r.Metric, ipv6Metric)
	}
	return r.Metric
}

// Equal compares the desired part.
func (r *Route) Equal(o *Route) bool {
	a, b := *r, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// GetStatus returns the status of the row.
func (r *Route) GetStatus() reconciler.Status { return r.Status }

// WithStatus sets the status of a clone.
func (r *Route) WithStatus(s reconciler.Status) *Route { r.Status = s; return r }

// TableHeader implements statedb.TableWritable.
func (*Route) TableHeader() []string {
	return []string{"Destination", "Table", "Device", "Gateway", "Source", "MTU", "Metric", "Owner", "Status"}
}

// TableRow implements statedb.TableWritable.
func (r *Route) TableRow() []string {
	return []string{r.Dst.String(), strconv.Itoa(r.Table), r.Device, column.Addr(r.Gw), column.Addr(r.Src), strconv.Itoa(r.MTU), strconv.Itoa(r.Metric), r.Owner, r.Status.Kind.String()}
}

var keyIndex = indexes.Unique("key", indexes.String, (*Route).Key)
var ownerIndex = indexes.Shared("owner", indexes.String, func(r *Route) string { return r.Owner })

// Queries. ByKey takes "<table>/<destination>", followed by "/<metric>" unless the metric is 0.
var (
	ByKey   = keyIndex.Query
	ByOwner = ownerIndex.Query
)

// NewTable makes the table "desired-routes".
func NewTable(db *statedb.DB) (statedb.RWTable[*Route], error) {
	return statedb.NewTable(db, "desired-routes", keyIndex, ownerIndex)
}

// Writer adds routes; each owner has its own set.
type Writer interface {
	// Replace makes routes the complete set of owner, in one commit. A route whose key belongs to another owner is omitted and named in the error.
	Replace(owner string, routes []Route) error
	// Update inserts or changes some routes of owner and deletes others, in one commit. A route in both lists stays. It does not replace the first call of
	// Replace that [Writer.Expect] announces. A route whose key belongs to another owner is omitted and named in the error.
	Update(owner string, put, remove []Route) error
	// Expect announces, before the agent starts, that owner will call Replace. Until that call the table is not initialized and no route is pruned.
	Expect(owner string)
}
