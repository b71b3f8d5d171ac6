package clusternodes

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Names finds the nodes that claim a prefix or an address, which is a prefix of full length. Several nodes may claim the same one. The zero value is empty.
type Names struct{ lists bart.Table[[]string] } // sorted

// Add adds a node's claim of a prefix.
func (n *Names) Add(p netip.Prefix, name string) {
	list, _ := n.lists.Get(p)
	if at, found := slices.BinarySearch(list, name); !found {
		n.lists.Insert(p, slices.Insert(slices.Clip(list), at, name))
	}
}

// Remove removes a node's claim of a prefix.
func (n *Names) Remove(p netip.Prefix, name string) {
	list, _ := n.lists.Get(p)
	at, found := slices.BinarySearch(list, name)
	switch {
	case !found:
	case len(list) == 1:
		n.lists.Delete(p)
	default:
		n.lists.Insert(p, slices.Delete(slices.Clone(list), at, at+1))
	}
}

// Of returns the names of the nodes that claim a prefix, sorted. The caller must not change the list.
func (n *Names) Of(p netip.Prefix) []string {
	list, _ := n.lists.Get(p)
	return list
}

// At returns the names of the nodes that claim the longest prefix that contains an address, sorted. The caller must not change the list.
func (n *Names) At(addr netip.Addr) []string {
	list, _ := n.lists.Lookup(addr)
	return list
}

// Around yields the claimed prefixes that equal or contain a prefix, with the names of their nodes.
func (n *Names) Around(p netip.Prefix) iter.Seq2[netip.Prefix, []string] { return n.lists.Supernets(p) }

// Within yields the claimed prefixes that equal a prefix or lie inside it, with the names of their nodes.
func (n *Names) Within(p netip.Prefix) iter.Seq2[netip.Prefix, []string] { return n.lists.Subnets(p) }

// Whole returns the prefix of full length of an address.
func Whole(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// AddressesOf returns the addresses of a node, of any type; none for nil.
func AddressesOf(n *nodes.Node) (list []netip.Addr) {
	if n == nil {
		return nil
	}
	for _, a := range n.Addresses {
		list = append(list, a.Addr)
	}
	return list
}

// RangesOf returns the pod ranges of a node; none for nil.
func RangesOf(n *nodes.Node) []netip.Prefix {
	if n == nil {
		return nil
	}
	return n.CIDRs
}

// Differing yields the elements that only one of two lists has.
func Differing[V comparable](a, b []V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, lists := range [][2][]V{{a, b}, {b, a}} {
			for _, v := range lists[0] {
				if !slices.Contains(lists[1], v) && !yield(v) {
					return
				}
			}
		}
	}
}
