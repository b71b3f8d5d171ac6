package noderoutes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Metrics with --routing-mode=hybrid. Routes into the tunnel hold the ranges of all nodes, and routes past it win beside them, so no packet is without a route
// while one of those comes or goes. Neither is 0, by which the kernel would delete a route of any metric.
const (
	directMetric = 1024
	tunnelMetric = 2048
)

// tunnel is what routes with a tunnel are computed from.
type tunnel struct {
	network *onlink.Network
	self    *localnode.LocalNode
	mtu     int            // of inner packets, in bytes
	less    map[string]int // the size that paths carry which carry less than mtu, in bytes, by node
	metric  int            // of routes into the tunnel; 0 for the kernel's
}

// size is the length in bytes of the largest packet to a node.
func (t tunnel) size(node string) int {
	if carried := t.less[node]; carried > 0 {
		return min(t.mtu, carried)
	}
	return t.mtu
}

// router is the address from which this node sends to pods of other nodes, with and without the tunnel, so that its connections outlive a change of the
// mode. It is invalid in a family in which this node has none.
func (t tunnel) router(ipv6 bool) netip.Addr {
	if ipv6 {
		return t.self.IPv6.Router
	}
	return t.self.IPv4.Router
}

// routes returns routes into waggle_host that cover exactly the pod ranges of the other nodes, and the reasons for ranges without one. The
// program of waggle_host finds the node of each packet. A family in which this node has no router address gets no routes. Nodes to which the path carries
// less have routes of their own, by which senders learn what fits.
func (t tunnel) routes(all []*nodes.Node) (routes []desiredroutes.Route, problems []error) {
	ranges := map[int][]netip.Prefix{} // by the size that the path carries
	for _, node := range all {
		if node.Source == nodes.Local {
			continue
		}
		size := t.size(node.Name)
		for _, p := range node.CIDRs {
			if taken := t.network.Covers(p); taken != "" {
				problems = append(problems, fmt.Errorf("range %s of node %s lies in the subnet of %s", p, node.Name, taken))
				continue
			}
			ranges[size] = append(ranges[size], p)
		}
	}
	for _, size := range slices.Sorted(maps.Keys(ranges)) {
		for _, p := range cover(ranges[size]) {
			r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: podlink.HostDevice, Src: t.router(p.Addr().Is6()), MTU: size, Metric: t.metric}
			if p.Addr().Is4() {
				r.Scope = unix.RT_SCOPE_LINK
			}
			if r.Src.IsValid() {
				routes = append(routes, r)
			}
		}
	}
	return routes, problems
}

// direct returns the routes past the tunnel to the nodes of a set. A node that has none, because it is no longer on a link of this node, is reached through
// the tunnel; the tests of its path say why.
func (t tunnel) direct(all []*nodes.Node, set map[string]bool) (routes []desiredroutes.Route) {
	for _, node := range all {
		if node.Source == nodes.Local || !set[node.Name] {
			continue
		}
		for _, ipv6 := range []bool{false, true} {
			found, _ := routesOf(node, ipv6, t.network)
			for _, r := range found {
				if r.Src, r.MTU, r.Metric = t.router(ipv6), t.size(node.Name), directMetric; r.Src.IsValid() {
					routes = append(routes, r)
				}
			}
		}
	}
	return routes
}

// cover returns the fewest prefixes that hold the addresses of the given ones and no others, sorted.
func cover(ranges []netip.Prefix) (out []netip.Prefix) {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range ranges {
		if last := len(out) - 1; last >= 0 && out[last].Overlaps(p) {
			continue // out[last] comes first, so it holds p
		}
		for out = append(out, p); len(out) > 1; {
			a, b := out[len(out)-2], out[len(out)-1]
			parent := netip.PrefixFrom(b.Addr(), b.Bits()-1).Masked()
			if a.Bits() != b.Bits() || b.Bits() == 0 || netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked() != parent {
				break
			}
			out = append(out[:len(out)-2], parent)
		}
	}
	return out
}
