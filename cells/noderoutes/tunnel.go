package noderoutes

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Metrics with a tunnel. Routes into the tunnel hold the ranges of all nodes, and routes past it win beside them, so no packet is without a route
// while one of those comes or goes. Neither is 0, by which the kernel would delete a route of any metric.
const (
	directMetric = 1024
	tunnelMetric = 2048
)

// tunnel is what routes with a tunnel are computed from.
type tunnel struct {
	// routers are the addresses from which this node sends to pods of other nodes, with and without the tunnel, so that its connections outlive a change of the
	// mode: IPv4 and IPv6, invalid in a family in which this node has none.
	routers [2]netip.Addr
	mtu     int // of inner packets, in bytes
}

// router is the address of a family from which this node sends to pods of other nodes.
func (t tunnel) router(ipv6 bool) netip.Addr {
	if ipv6 {
		return t.routers[1]
	}
	return t.routers[0]
}

// rangesOf returns the pod ranges of a node that routes into waggle_host may cover, and the reasons for ranges without one.
func rangesOf(n *nodes.Node, network *onlink.Network) (ranges []netip.Prefix, problems []error) {
	for _, p := range n.CIDRs {
		if taken := network.Covers(p); taken != "" {
			problems = append(problems, fmt.Errorf("range %s of node %s lies in the subnet of %s", p, n.Name, taken))
			continue
		}
		ranges = append(ranges, p)
	}
	return ranges, problems
}

// route returns a route into waggle_host for packets of a size. The program of waggle_host finds the node of each packet. A family in which this node has no
// router address gets no routes. Nodes to which the path carries less have routes of their own while there are no more than
// [maxRoutes], by which senders learn what fits.
func (t tunnel) route(p netip.Prefix, size int) desiredroutes.Route {
	r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: podlink.HostDevice, Src: t.router(p.Addr().Is6()), MTU: size, Metric: tunnelMetric}
	if p.Addr().Is4() {
		r.Scope = unix.RT_SCOPE_LINK
	}
	return r
}

// direct returns the routes past the tunnel to a node. A node that has none, because it is no longer on a link of this node, is reached through
// the tunnel; the tests of its path say why.
func (t tunnel) direct(n *nodes.Node, size int, network *onlink.Network) (routes []desiredroutes.Route) {
	for _, ipv6 := range []bool{false, true} {
		found, _ := routesOf(n, ipv6, network)
		for _, r := range found {
			if r.Src, r.MTU, r.Metric = t.router(ipv6), size, directMetric; r.Src.IsValid() {
				routes = append(routes, r)
			}
		}
	}
	return routes
}
