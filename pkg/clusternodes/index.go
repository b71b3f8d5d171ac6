package clusternodes

import (
	"net/netip"
	"slices"
)

// Index answers questions about addresses. It never changes.
type Index struct {
	nodes map[netip.Addr][]string  // who says that an address is its own, routers and health included, sorted
	cidrs map[netip.Prefix][]owner // whose pods a range is for
	bits  [2][]int                 // lengths of ranges that there are: IPv4, IPv6
}

type owner struct {
	node string
	spec bool
}

// Index makes one.
func (a All) Index() *Index {
	x := &Index{nodes: map[netip.Addr][]string{}, cidrs: map[netip.Prefix][]owner{}}
	for _, n := range a {
		for _, addr := range slices.Concat(n.Addrs, n.Routers, n.Health) {
			if !slices.Contains(x.nodes[addr], n.Name) {
				x.nodes[addr] = append(x.nodes[addr], n.Name)
			}
		}
		for _, c := range n.CIDRs {
			x.cidrs[c.Prefix] = append(x.cidrs[c.Prefix], owner{n.Name, c.Spec})
			if f := family(c.Prefix.Addr()); !slices.Contains(x.bits[f], c.Prefix.Bits()) {
				x.bits[f] = append(x.bits[f], c.Prefix.Bits())
			}
		}
	}
	return x
}

func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

// NodesOf names the nodes that say that an address is their own.
func (x *Index) NodesOf(addr netip.Addr) []string { return x.nodes[addr] }

// MayHold tells whether a pod with an address may be on a node: it lies in a range of that node, and when that range stands
// only in the CiliumNode, in none that stands in the Node of another.
func (x *Index) MayHold(node string, addr netip.Addr) bool {
	own, ownSpec, otherSpec := false, false, false
	x.each(addr, func(o owner) {
		own = own || o.node == node
		ownSpec = ownSpec || o.node == node && o.spec
		otherSpec = otherSpec || o.node != node && o.spec
	})
	return own && (ownSpec || !otherSpec)
}

// HoldsPods tells whether an address lies in a range of pods of a node other than the one of that name.
func (x *Index) HoldsPods(otherThan string, addr netip.Addr) (found bool) {
	x.each(addr, func(o owner) { found = found || o.node != otherThan })
	return found
}

func (x *Index) each(addr netip.Addr, do func(owner)) {
	for _, bits := range x.bits[family(addr)] {
		prefix, _ := addr.Prefix(bits) // bits are of the family
		for _, o := range x.cidrs[prefix] {
			do(o)
		}
	}
}
