package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/bpf"
)

// Numbers of named CIDRs: Cilium's scope of identities that mean something to one node alone.
const (
	firstCIDR uint32 = 0x01000001
	lastCIDR  uint32 = 0x01ffffff
)

// cidrs numbers the CIDRs that policies name, and keeps the map of them. It is for one goroutine.
//
// An address belongs to the longest CIDR that holds it. So that it goes from one to another in one step, longer CIDRs are
// written before shorter ones and removed after them.
type cidrs struct {
	kernel  cidrMap
	room    int
	nested  bool                    // no program of the previous release, whose map may be smaller, runs
	numbers map[netip.Prefix]uint32 // of those that are named, and of those that are still in the map
	written map[netip.Prefix]uint32 // what the map has
	known   map[uint32]bool         // numbers that it has: addresses may be known by them
	taken   map[uint32]bool         // numbers in use
	last    uint32                  // the number that was given last
	named   map[netip.Prefix]bool
	full    map[netip.Prefix]bool // prefixes that are named and have no slot in the map
	err     error                 // why the map is not what it should be
	raise   bool                  // the map has changed, and the epoch has not been raised yet
	names   uint64                // version of the names that have numbers: see [policymap.Resolver.Namings]
	freed   bool                  // numbers have been removed since then
	moved   bool                  // names, numbers, the map or the table named-cidrs may differ: see [cidrs.settle]
}

func newCIDRs(kernel cidrMap) *cidrs { return &cidrs{kernel: kernel} }

// restore reads what an earlier run left: numbers stay what they were.
func (c *cidrs) restore() (err error) {
	if c.room, err = c.kernel.Room(); err != nil {
		return err
	}
	if c.written, err = c.kernel.Dump(); err != nil {
		return err
	}
	c.numbers, c.taken, c.named, c.last = map[netip.Prefix]uint32{}, map[uint32]bool{}, map[netip.Prefix]bool{}, firstCIDR-1
	c.known, c.full, c.moved = map[uint32]bool{}, map[netip.Prefix]bool{}, true
	for _, prefix := range slices.SortedFunc(maps.Keys(c.written), comparePrefixes) {
		number := c.written[prefix]
		c.known[number] = true
		if number < firstCIDR || number > lastCIDR || c.taken[number] {
			continue // nobody of ours wrote this: it gets another number, or goes
		}
		c.numbers[prefix], c.taken[number] = number, true
		c.last = max(c.last, number)
	}
	return nil
}

// comparePrefixes orders prefixes as text does not: by family, address and length.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// name gives numbers to the prefixes of a version that need one. A prefix beyond the quota of its namespaces gets none, nor does one without a slot in the map.
// It reports whether numbers may have changed, and which prefixes have none.
func (c *cidrs) name(prefixes []netip.Prefix, version uint64, beyond map[netip.Prefix]bool) (renumbered bool, err error) {
	if renumbered = c.moved || c.names != version; renumbered {
		c.names, c.freed, c.moved = version, false, true
		c.number(prefixes, beyond)
	}
	if without := len(c.full); without > 0 {
		err = fmt.Errorf("%d of %d address ranges that policies name do not fit into the map cidrs, which holds %d: rules about them "+
			"grant nothing; raise --bpf-cidr-map-max", without, len(prefixes), c.limit())
	}
	return renumbered, err
}

func (c *cidrs) number(prefixes []netip.Prefix, beyond map[netip.Prefix]bool) {
	clear(c.named)
	clear(c.full)
	for _, p := range prefixes {
		c.named[p] = true
		switch {
		case c.numbers[p] != 0 || beyond[p]:
		case len(c.numbers) >= c.limit():
			c.full[p] = true
		default:
			number := c.next()
			c.numbers[p], c.taken[number] = number, true
		}
	}
}

// settle notes that the table named-cidrs is up to date. If the map has exactly the named ranges as well, no round looks at them until one of both changes.
func (c *cidrs) settle() {
	c.moved = c.freed || c.err != nil || c.raise || len(c.missing())+len(c.retired()) > 0
}

// limit is how many ranges all programs can read.
func (c *cidrs) limit() int {
	if former := bpf.FormerLayout(bpf.MapCIDRs); former != nil && !c.nested {
		return min(c.room, int(former.Spec.MaxEntries))
	}
	return c.room
}

func (c *cidrs) next() uint32 {
	for {
		if c.last++; c.last > lastCIDR || c.last < firstCIDR {
			c.last = firstCIDR
		}
		if !c.taken[c.last] {
			return c.last
		}
	}
}

// missing lists what is named and not in the map, in the order in which it is to be written.
func (c *cidrs) missing() (list []netip.Prefix) {
	for p := range c.named {
		if n := c.numbers[p]; n != 0 && c.written[p] != n {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), a.Addr().Compare(b.Addr()))
	})
	return list
}

// parent is the number that addresses of a prefix have now; 0 when none.
func (c *cidrs) parent(p netip.Prefix) uint32 {
	for bits := p.Bits(); bits >= 0; bits-- {
		wider := netip.PrefixFrom(p.Addr(), bits).Masked()
		if number, found := c.written[wider]; found {
			return number
		}
	}
	return 0
}

// write puts what is missing into the map.
func (c *cidrs) write(missing []netip.Prefix) error {
	for _, p := range missing {
		c.raise = true
		if err := c.kernel.Put(p, c.numbers[p]); err != nil {
			return fmt.Errorf("write %s to the map cidrs: %w", p, err)
		}
		c.written[p], c.known[c.numbers[p]] = c.numbers[p], true
	}
	return c.announce()
}

// announce has flows judged again after a change.
func (c *cidrs) announce() error {
	if !c.raise {
		return nil
	}
	if err := c.kernel.Raise(); err != nil {
		return err
	}
	c.raise = false
	return nil
}

// retired lists what is in the map and not named any more, in the order in which it is to go.
func (c *cidrs) retired() (list []netip.Prefix) {
	for p := range c.written {
		if !c.named[p] || c.numbers[p] == 0 {
			list = append(list, p)
		}
	}
	for p := range c.numbers {
		if _, there := c.written[p]; !there && !c.named[p] {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	return list
}

// retire removes what is not named any more; its numbers are free.
func (c *cidrs) retire(list []netip.Prefix) error {
	var errs []error
	for _, p := range list {
		c.moved, c.freed = true, true
		c.raise = true
		if err := c.kernel.Delete(p); err != nil {
			// Shorter ones are gone already, longer ones must stay while this one does.
			errs = append(errs, fmt.Errorf("delete %s from the map cidrs: %w", p, err))
			break
		}
		delete(c.known, c.written[p])
		delete(c.written, p)
		delete(c.taken, c.numbers[p])
		delete(c.numbers, p)
	}
	return errors.Join(append(errs, c.announce())...)
}
