package devices

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
)

// Route is one next hop of one route, as last reported. A multipath route has a row for each next hop.
type Route struct {
	Table     int          `json:"table"` // routing table; 254 is main, 255 local
	Dst       netip.Prefix `json:"dst"`
	Priority  int          `json:"priority"`
	LinkIndex int          `json:"linkIndex"` // 0 for a route without a device (blackhole, unreachable)
	Gw        netip.Addr   `json:"gw"`        // invalid: directly on the link
	Src       netip.Addr   `json:"src"`       // preferred source; invalid: none
	Scope     uint8        `json:"scope"`     // RT_SCOPE_*
	Type      uint8        `json:"type"`      // RTN_*: 1 unicast, 2 local, ...
	Protocol  uint8        `json:"protocol"`  // RTPROT_*: origin of the route
	MTU       int          `json:"mtu"`       // bytes; 0: the device's
}

// TableHeader implements statedb.TableWritable.
func (*Route) TableHeader() []string {
	return []string{"Destination", "Table", "LinkIndex", "Gateway", "Source", "Priority", "Protocol", "Type", "MTU"}
}

// TableRow implements statedb.TableWritable.
func (r *Route) TableRow() []string {
	return []string{r.Dst.String(), strconv.Itoa(r.Table), strconv.Itoa(r.LinkIndex), column.Addr(r.Gw), column.Addr(r.Src),
		strconv.Itoa(r.Priority), strconv.Itoa(int(r.Protocol)), strconv.Itoa(int(r.Type)), strconv.Itoa(r.MTU)}
}

// Destination identifies the route of this next hop. It is a prefix of the row's key.
func (r *Route) Destination() string { return fmt.Sprintf("%d/%s/%d/", r.Table, r.Dst, r.Priority) }

// Key identifies the row.
func (r *Route) Key() string {
	return r.Destination() + strconv.Itoa(r.LinkIndex) + "/" + column.Addr(r.Gw) + "/" + strconv.Itoa(int(r.Type))
}

var routeIndex = indexes.Unique("id", indexes.String, (*Route).Key)
var routeLinkIndex = indexes.Shared("link", indexes.Int, func(r *Route) int { return r.LinkIndex })

// routeTypeIndex finds the rows of one type. Routes to the node itself have the types RTN_LOCAL, RTN_BROADCAST and RTN_ANYCAST.
var routeTypeIndex = indexes.Shared("type", indexes.Int, func(r *Route) int { return int(r.Type) })

// Queries of routes. RouteByID takes "<table>/<destination>/<priority>/<ifindex>/<gateway or ->/<type>", or a prefix of it in a prefix query.
var (
	RouteByID   = routeIndex.Query
	RouteByLink = routeLinkIndex.Query
	RouteByType = routeTypeIndex.Query
)

// NewRouteTable makes the table "routes".
func NewRouteTable(db *statedb.DB) (statedb.RWTable[*Route], error) {
	return statedb.NewTable(db, "routes", routeIndex, routeLinkIndex, routeTypeIndex)
}
