package clusternodes

import (
	"iter"
	"net/netip"
	"slices"
)

// Index answers questions about addresses. [Index.Replace] alone changes it.
type Index struct {
	nodes Names                    // who says that an address is its own, routers and health included
	cidrs map[netip.Prefix][]owner // whose pods a range is for
	bits  [2][]int                 // lengths of ranges that there are, or have been: IPv4, IPv6
}

type owner struct {
	node string
	spec bool
}

// NewIndex makes an index without nodes.
func NewIndex() *Index {
	return &Index{cidrs: map[netip.Prefix][]owner{}}
}

// Replace takes a node out, and puts another one in, both of which may be the zero Node. Nobody may ask meanwhile.
func (x *Index) Replace(before, after Node) {
	for _, addr := range before.All() {
		x.nodes.Remove(Whole(addr), before.Name)
	}
	for _, c := range before.CIDRs {
		gone := owner{before.Name, c.Spec}
		if x.cidrs[c.Prefix] = slices.DeleteFunc(x.cidrs[c.Prefix], func(o owner) bool { return o == gone }); len(x.cidrs[c.Prefix]) == 0 {
			delete(x.cidrs, c.Prefix)
		}
	}
	for _, addr := range after.All() {
		x.nodes.Add(Whole(addr), after.Name)
	}
	for _, c := range after.CIDRs {
		x.cidrs[c.Prefix] = append(x.cidrs[c.Prefix], owner{after.Name, c.Spec})
		if f := family(c.Prefix.Addr()); !slices.Contains(x.bits[f], c.Prefix.Bits()) {
			x.bits[f] = append(x.bits[f], c.Prefix.Bits())
		}
	}
}

// All are the addresses of a node, of whatever kind.
func (n Node) All() []netip.Addr { return slices.Concat(n.Addrs, n.Routers, n.Health) }

func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

// NodesOf names the nodes that say that an address is their own.
func (x *Index) NodesOf(addr netip.Addr) []string { return x.nodes.Of(Whole(addr)) }

// NodesIn names the nodes that say that an address in a range is their own, by address.
func (x *Index) NodesIn(cidr netip.Prefix) iter.Seq2[netip.Prefix, []string] {
	return x.nodes.Within(cidr)
}

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
