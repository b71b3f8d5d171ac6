package policymaps

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
)

// Numbers of named CIDRs. Cilium has this scope for identities that are local to a node.
const (
	firstCIDR uint32 = 0x01000001
	lastCIDR  uint32 = 0x01ffffff
)

// cidrs numbers the CIDRs that policies name, and writes them to the map cidrs. It is not safe for concurrent use; the verify job uses it with
// [controller].mu held.
//
// An address has the number of the longest CIDR that contains it. Longer CIDRs are written before shorter ones and removed after them, so that an address
// changes from one CIDR to another in one step.
type cidrs struct {
	kernel   cidrMap
	capacity int
	nested   bool                    // no program of the previous release, whose map may be smaller, runs
	numbers  map[netip.Prefix]uint32 // numbers of named CIDRs, and of CIDRs that are still in the map
	written  map[netip.Prefix]uint32 // contents of the map
	known    map[uint32]bool         // numbers in the map, which addresses may have
	taken    map[uint32]bool         // numbers in use
	last     uint32                  // last assigned number
	named    map[netip.Prefix]bool
	full     map[netip.Prefix]bool // named prefixes without a slot in the map
	err      error                 // why the map does not have the desired content
	raise    bool                  // the map has changed, and the epoch has not been raised yet
	names    uint64                // version of the names that have numbers: see [policycompiler.Resolver.Namings]
	freed    bool                  // numbers have been removed since then
	moved    bool                  // names, numbers, the map or the table named-cidrs may differ: see [cidrs.settle]
}

func newCIDRs(kernel cidrMap) *cidrs { return &cidrs{kernel: kernel} }

// restore reads the map of the previous run. Its CIDRs keep their numbers. That run may have stopped between a change of entries or of the map and the revision
// or the epoch that follows it. So the first write of this run raises the epoch, even if nothing has changed.
func (c *cidrs) restore() (err error) {
	if c.capacity, err = c.kernel.Capacity(); err != nil {
		return err
	}
	if c.written, err = c.kernel.Dump(); err != nil {
		return err
	}
	c.numbers, c.taken, c.named, c.last = map[netip.Prefix]uint32{}, map[uint32]bool{}, map[netip.Prefix]bool{}, firstCIDR-1
	c.known, c.full, c.moved, c.raise = map[uint32]bool{}, map[netip.Prefix]bool{}, true, true
	for _, prefix := range slices.SortedFunc(maps.Keys(c.written), netip.Prefix.Compare) {
		number := c.written[prefix]
		c.known[number] = true
		if number < firstCIDR || number > lastCIDR || c.taken[number] {
			continue // not written by an agent: the CIDR gets another number or is removed
		}
		c.numbers[prefix], c.taken[number] = number, true
		c.last = max(c.last, number)
	}
	return nil
}

// skip makes the numbers of new CIDRs follow those in entries of the previous run, which may have stopped before it wrote their CIDRs: another CIDR must not get
// the number of one of these.
func (c *cidrs) skip(entries map[entryKey]policycompiler.Entry) {
	for k := range entries {
		if (k.Kind == policycompiler.CIDR || k.Kind == policycompiler.CIDROutside) && k.Identity <= lastCIDR {
			c.last = max(c.last, k.Identity)
		}
	}
}

// name assigns numbers to the prefixes of a version. A prefix beyond the quota of its namespaces gets none, nor does one without a slot in the map. It
// reports whether numbers may have changed. The error counts the prefixes without a slot.
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

// settle records that the table named-cidrs is up to date. If the map also has exactly the named ranges, no round compares them until one of the two changes.
func (c *cidrs) settle() {
	c.moved = c.freed || c.err != nil || c.raise || len(c.missing())+len(c.retired()) > 0
}

// limit returns the number of ranges that all programs can read.
func (c *cidrs) limit() int {
	if previous := bpf.PreviousLayoutOf(bpf.MapCIDRs); previous != nil && !c.nested {
		return min(c.capacity, int(previous.Spec.MaxEntries))
	}
	return c.capacity
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

// missing returns the named prefixes that are not in the map, in the order in which they must be written.
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

// parent returns the number that the addresses of a prefix have now; 0 for none.
func (c *cidrs) parent(p netip.Prefix) uint32 {
	for bits := p.Bits(); bits >= 0; bits-- {
		wider := netip.PrefixFrom(p.Addr(), bits).Masked()
		if number, found := c.written[wider]; found {
			return number
		}
	}
	return 0
}

// write writes the missing prefixes to the map.
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

// announce raises the epoch after a change, so that flows are evaluated again.
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

// retired returns the prefixes that are not named any longer, in the order in which they must be removed.
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

// retire removes prefixes from the map and frees their numbers.
func (c *cidrs) retire(list []netip.Prefix) error {
	var errs []error
	for _, p := range list {
		c.moved, c.freed = true, true
		c.raise = true
		if err := c.kernel.Delete(p); err != nil {
			// Shorter CIDRs are removed already. Longer CIDRs must not be removed before this one.
			errs = append(errs, fmt.Errorf("delete %s from the map cidrs: %w", p, err))
			break
		}
		if number := c.written[p]; number == c.numbers[p] || !c.taken[number] { // a foreign range may have the number of another one
			delete(c.known, number)
		}
		delete(c.written, p)
		delete(c.taken, c.numbers[p])
		delete(c.numbers, p)
	}
	return errors.Join(append(errs, c.announce())...)
}

// removable returns the retired prefixes that are not in the entries of an outdated policy of an endpoint. An endpoint of a namespace beyond its quota may keep
// such a policy without a time limit; this must not prevent the removal of other ranges.
func (c *controller) removable(retired []netip.Prefix) []netip.Prefix {
	if len(retired) == 0 {
		return nil
	}
	used, flat := c.store.outdatedRanges(c.views.successors)
	if flat {
		return nil
	}
	return slices.DeleteFunc(retired, func(p netip.Prefix) bool { return used[c.cidrs.numbers[p]] || used[c.cidrs.written[p]] })
}

// waitingForRanges returns the desired policies with entries about address ranges that are not in the map yet. Such a policy must not be used: addresses of the
// missing range have the range around it, which the policy may allow.
func (c *controller) waitingForRanges() map[*policycompiler.Compiled]bool {
	missing, waiting := map[uint32]bool{}, map[*policycompiler.Compiled]bool{}
	for _, p := range c.cidrs.missing() {
		missing[c.cidrs.numbers[p]] = true
	}
	for compiled := range c.views.compiled {
		for e := range compiled.Entries() {
			if missing[e.Identity] && (e.Kind == policycompiler.CIDR || e.Kind == policycompiler.CIDROutside) {
				waiting[compiled] = true
				break
			}
		}
		c.alive()
	}
	return waiting
}
