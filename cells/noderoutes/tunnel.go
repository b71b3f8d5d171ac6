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

// tunnelRoutes returns routes into waggle_host that cover exactly the pod ranges of the other nodes, and the reasons for ranges without one. The
// program of waggle_host finds the node of each packet. A family in which this node has no router address gets no routes. Nodes to which the path carries
// less than mtu, in bytes by name, have routes of their own, by which senders learn what fits.
func tunnelRoutes(all []*nodes.Node, n *onlink.Network, self *localnode.LocalNode, mtu int, less map[string]int) (routes []desiredroutes.Route, problems []error) {
	ranges := map[int][]netip.Prefix{} // by the size that the path carries
	for _, node := range all {
		if node.Source == nodes.Local {
			continue
		}
		size := mtu
		if carried := less[node.Name]; carried > 0 {
			size = min(size, carried)
		}
		for _, p := range node.CIDRs {
			if taken := n.Covers(p); taken != "" {
				problems = append(problems, fmt.Errorf("range %s of node %s lies in the subnet of %s", p, node.Name, taken))
				continue
			}
			ranges[size] = append(ranges[size], p)
		}
	}
	for _, size := range slices.Sorted(maps.Keys(ranges)) {
		for _, p := range cover(ranges[size]) {
			r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: podlink.HostDevice, Src: self.IPv6.Router, MTU: size}
			if p.Addr().Is4() {
				r.Src, r.Scope = self.IPv4.Router, unix.RT_SCOPE_LINK
			}
			if r.Src.IsValid() {
				routes = append(routes, r)
			}
		}
	}
	return routes, problems
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
