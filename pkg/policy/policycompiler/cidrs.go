package policycompiler

import (
	"net/netip"
	"slices"
)

// named is a prefix with its identity.
type named struct {
	prefix   netip.Prefix
	identity uint32
}

// namedCIDRs holds the prefixes that have an identity.
type namedCIDRs struct {
	sorted   []named
	number   map[netip.Prefix]uint32
	prefixOf map[uint32]netip.Prefix
}

func newNamedCIDRs() namedCIDRs {
	return namedCIDRs{number: map[netip.Prefix]uint32{}, prefixOf: map[uint32]netip.Prefix{}}
}

// set replaces the named prefixes and returns the removed and the added ones. A prefix with another identity is in both.
func (n *namedCIDRs) set(identities map[netip.Prefix]uint32) (gone, come []named) {
	for prefix, number := range n.number {
		if identities[prefix] != number {
			gone = append(gone, named{prefix, number})
		}
	}
	for prefix, number := range identities {
		if n.number[prefix] != number {
			come = append(come, named{prefix, number})
		}
	}
	for _, g := range gone {
		delete(n.number, g.prefix)
		delete(n.prefixOf, g.identity)
	}
	for _, c := range come {
		n.number[c.prefix], n.prefixOf[c.identity] = c.identity, c.prefix
	}
	n.sort(gone, come)
	return gone, come
}

// sort updates the sorted list.
func (n *namedCIDRs) sort(gone, come []named) {
	if len(gone)+len(come) > many {
		n.sortAll()
		return
	}
	for _, g := range gone {
		if i, found := n.search(g.prefix); found {
			n.sorted = slices.Delete(n.sorted, i, i+1)
		}
	}
	for _, c := range come {
		i, _ := n.search(c.prefix)
		n.sorted = slices.Insert(n.sorted, i, c)
	}
}

// sortAll rebuilds the sorted list.
func (n *namedCIDRs) sortAll() {
	n.sorted = n.sorted[:0]
	for prefix, number := range n.number {
		n.sorted = append(n.sorted, named{prefix, number})
	}
	slices.SortFunc(n.sorted, func(a, b named) int { return a.prefix.Compare(b.prefix) })
}

func (n *namedCIDRs) search(prefix netip.Prefix) (int, bool) {
	return slices.BinarySearchFunc(n.sorted, prefix, func(a named, p netip.Prefix) int { return a.prefix.Compare(p) })
}

// within returns the named prefixes that a prefix contains, including itself.
func (n *namedCIDRs) within(prefix netip.Prefix) []named {
	first, _ := n.search(prefix)
	length, _ := slices.BinarySearchFunc(n.sorted[first:], prefix, func(a named, p netip.Prefix) int {
		if p.Contains(a.prefix.Addr()) {
			return -1
		}
		return 1
	})
	return n.sorted[first : first+length]
}

// around returns the identities of the prefixes that contain an address, the longest first.
func (n *namedCIDRs) around(address netip.Addr) (numbers []uint32) {
	address = address.Unmap().WithZone("")
	for bits := address.BitLen(); bits >= 0; bits-- {
		prefix, err := address.Prefix(bits)
		if err != nil {
			return nil
		}
		if number := n.number[prefix]; number != 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// contains reports whether one prefix contains all of another.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// prefixCounts counts the rules that name a prefix, by the namespaces of their policies. The namespace of cluster-wide policies is "".
type prefixCounts struct {
	of      map[string]map[netip.Prefix]int
	changed bool // a prefix was added or removed
}

func (c *prefixCounts) add(namespace string, prefix netip.Prefix, by int) {
	counts := c.of[namespace]
	if counts == nil {
		counts = map[netip.Prefix]int{}
		c.of[namespace] = counts
	}
	before := counts[prefix]
	if counts[prefix] = before + by; before+by == 0 {
		delete(counts, prefix)
	}
	if len(counts) == 0 {
		delete(c.of, namespace)
	}
	c.changed = c.changed || before == 0 || before+by == 0
}
