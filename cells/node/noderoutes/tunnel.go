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

// tunnel contains the properties of this node that routes with a tunnel depend on.
type tunnel struct {
	// routers are the source addresses (IPv4, IPv6) of packets from this node to pods of other nodes; invalid in a family without a router address. They are the
	// same with and without the tunnel, so that connections survive a change of the mode.
	routers [2]netip.Addr
	mtu     int // MTU of inner packets in bytes
	// past and into are the metrics of routes past the tunnel and into it ([agentconfig.Agent.TunnelMetrics]). Routes into the tunnel cover the ranges of all nodes,
	// and routes past the tunnel have the lower metric, so packets always have a route while a route past the tunnel is added or deleted.
	past, into int
}

// router returns the router address of a family.
func (t tunnel) router(ipv6 bool) netip.Addr {
	if ipv6 {
		return t.routers[1]
	}
	return t.routers[0]
}

// rangesOf returns the pod ranges of a node that routes into waggle_host may cover, and the reasons for excluded ranges.
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

// route returns a route into waggle_host with a size as its MTU. The program of waggle_host finds the node of each packet. Nodes whose paths carry smaller
// packets get their own routes while there are at most [maxRoutes], so that senders learn the path MTU. The caller must not use the route in a family without a
// router address.
func (t tunnel) route(p netip.Prefix, size int) desiredroutes.Route {
	r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: podlink.HostDevice, Src: t.router(p.Addr().Is6()), MTU: size, Metric: t.into}
	if p.Addr().Is4() {
		r.Scope = unix.RT_SCOPE_LINK
	}
	return r
}

// direct returns the routes past the tunnel to a node. A node without such routes, for example because it is no longer on a link of this node, is reached
// through the tunnel; path-tests contains the reason.
func (t tunnel) direct(n *nodes.Node, size int, network *onlink.Network) (routes []desiredroutes.Route) {
	for _, ipv6 := range []bool{false, true} {
		found, _ := routesOf(n, ipv6, network)
		for _, r := range found {
			if r.Src, r.MTU, r.Metric = t.router(ipv6), size, t.past; r.Src.IsValid() {
				routes = append(routes, r)
			}
		}
	}
	return routes
}
