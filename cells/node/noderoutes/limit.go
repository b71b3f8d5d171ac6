package noderoutes

import (
	"cmp"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// maxRoutes is the limit of the routes into the tunnel, for both families together.
const maxRoutes = 64

// Lengths of the widest merged prefixes. The bound prevents two distant ranges from attracting the packets to a large part of the internet: an /8 is the
// largest range of a cluster, and a /32 is a usual IPv6 allocation of a provider.
const (
	widestIPv4 = 8
	widestIPv6 = 32
)

// covered is a prefix that gets a route into the tunnel.
type covered struct {
	prefix netip.Prefix
	size   int // largest packet in bytes that the paths to all nodes in the prefix carry
}

// limitRoutes merges the prefixes of the covers when there are more than the limit, and adds prefixes whose routes change to places.
func (r *routing) limitRoutes(places map[netip.Prefix]struct{}) {
	before, count := r.merged, 0
	for _, of := range r.covers {
		count += of.cover.Size()
	}
	if count <= r.limit && before == nil {
		return
	}
	r.merged = nil
	all := r.allCovers(count)
	if len(all) > r.limit {
		r.merged = make(map[netip.Prefix]int, r.limit)
		for _, c := range mergeFamilies(all, r.limit, r.isTaken) {
			r.merged[c.prefix] = c.size
		}
	}
	for _, routes := range []map[netip.Prefix]int{before, r.merged} {
		for p := range routes {
			if before[p] != r.merged[p] {
				places[p] = struct{}{}
			}
		}
	}
	if (before == nil) != (r.merged == nil) {
		for _, c := range all {
			places[c.prefix] = struct{}{}
		}
	}
}

// allCovers returns the sorted prefixes of all covers in families in which this node has a router address. count is their maximum number.
func (r *routing) allCovers(count int) []covered {
	all := make([]covered, 0, count)
	for size, of := range r.covers {
		for p := range of.cover.AllSorted() {
			if r.tunnel.router(p.Addr().Is6()).IsValid() {
				all = append(all, covered{p, size})
			}
		}
	}
	slices.SortFunc(all, func(a, b covered) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), cmp.Compare(a.size, b.size))
	})
	return all
}

// isTaken reports whether a merged route must not cover a prefix, because the prefix overlaps a subnet of this node or contains an underlay address of a node,
// the destination of outer packets.
func (r *routing) isTaken(p netip.Prefix) bool {
	for subnet := range r.network.Subnets() {
		if subnet.Overlaps(p) {
			return true
		}
	}
	return r.addrs.OverlapsPrefix(p)
}

// addrsOf returns the underlay addresses of a node (internal and external) as prefixes.
func addrsOf(n *nodes.Node) (addrs []netip.Prefix) {
	for _, a := range n.Addresses {
		if a.Type == nodes.InternalIP || a.Type == nodes.ExternalIP {
			addrs = append(addrs, netip.PrefixFrom(a.Addr, a.Addr.BitLen()))
		}
	}
	return addrs
}

// mergeFamilies reduces sorted prefixes of both families to a limit. Each family gets at least half of the limit, and the part that the other family does not
// use.
func mergeFamilies(all []covered, limit int, taken func(netip.Prefix) bool) []covered {
	all = outermost(all)
	first := slices.IndexFunc(all, func(c covered) bool { return c.prefix.Addr().Is6() })
	if first < 0 {
		first = len(all)
	}
	ipv4, ipv6 := all[:first:first], all[first:]
	return append(merge(ipv4, max(limit/2, limit-len(ipv6)), taken), merge(ipv6, max(limit/2, limit-len(ipv4)), taken)...)
}

// outermost removes prefixes inside other prefixes from a sorted list. The outer prefix gets the smaller size.
func outermost(sorted []covered) (out []covered) {
	for _, c := range sorted {
		if last := len(out) - 1; last >= 0 && out[last].prefix.Overlaps(c.prefix) {
			out[last].size = min(out[last].size, c.size)
			continue
		}
		out = append(out, c)
	}
	return out
}

// junction is the narrowest prefix that contains a part of a sorted list of prefixes. Junctions form a binary tree whose leaves are the prefixes of the list.
type junction struct {
	covered
	low, high *junction // the two children; nil in a leaf
	price     float64   // number of addresses that merging the children adds; at least the price of each child; 0 in a leaf
}

// merge reduces a sorted list of disjoint prefixes of one family to a limit: it starts with the junction of all prefixes and repeatedly divides the junction
// with the highest price. A junction that must not get a route is always divided, so the result may exceed the limit.
func merge(in []covered, limit int, taken func(netip.Prefix) bool) (out []covered) {
	if len(in) <= limit {
		return in
	}
	space := make([]junction, 0, 2*len(in)-1)
	parts := permitted(join(in, &space), taken, nil)
	for len(parts) < limit {
		most := 0
		for i, j := range parts {
			if j.low != nil && (parts[most].low == nil || j.price > parts[most].price) {
				most = i
			}
		}
		j := parts[most]
		parts = append(parts, j.high)
		parts[most] = j.low
	}
	for _, j := range parts {
		out = append(out, j.covered)
	}
	return out
}

// join returns the junction of a list. space must have capacity for all junctions, because they must not move.
func join(in []covered, space *[]junction) *junction {
	j := junction{covered: in[0]}
	if len(in) > 1 {
		both := common(in[0].prefix, in[len(in)-1].prefix)
		_, high := halves(both)
		second, _ := slices.BinarySearchFunc(in, high.Addr(), func(c covered, addr netip.Addr) int { return c.prefix.Addr().Compare(addr) })
		j.low, j.high = join(in[:second], space), join(in[second:], space)
		j.covered = covered{both, min(j.low.size, j.high.size)}
		j.price = max(j.low.price, j.high.price, addresses(both)-addresses(j.low.prefix)-addresses(j.high.prefix))
	}
	*space = append(*space, j)
	return &(*space)[len(*space)-1]
}

// permitted divides a junction until each part may get a route.
func permitted(j *junction, taken func(netip.Prefix) bool, parts []*junction) []*junction {
	widest := widestIPv4
	if j.prefix.Addr().Is6() {
		widest = widestIPv6
	}
	if j.low == nil || j.prefix.Bits() >= widest && !taken(j.prefix) {
		return append(parts, j)
	}
	return permitted(j.high, taken, permitted(j.low, taken, parts))
}

// common returns the narrowest prefix that contains two prefixes of one family.
func common(a, b netip.Prefix) netip.Prefix {
	x, y := a.Addr().AsSlice(), b.Addr().AsSlice()
	same := 0
	for same < len(x)-1 && x[same] == y[same] {
		same++
	}
	length := min(8*same+bits.LeadingZeros8(x[same]^y[same]), a.Bits(), b.Bits())
	return netip.PrefixFrom(a.Addr(), length).Masked()
}

// addresses returns the number of addresses of a prefix, a power of two.
func addresses(p netip.Prefix) float64 { return math.Ldexp(1, p.Addr().BitLen()-p.Bits()) }
