package policymap

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Rule is what a cookie stands for.
type Rule struct {
	Policy policy.Ref `json:"policy,omitzero"` // empty for what the agent itself allows
	Path   string     `json:"path"`            // where the rule stands in the object
	Deny   bool       `json:"deny,omitempty"`
}

// Compiled is what holds for one direction of some endpoints. It never changes. All methods may be called from anywhere.
type Compiled struct {
	allowsAll bool
	isolated  bool
	localhost bool     // the local host is allowed, whatever the entries say
	nested    bool     // entries about a named CIDR count in those inside it
	groups    []*group // sorted, none empty
	classes   [classes]int
	rules     []*rule // shared with others
	missing   []netip.Prefix
}

// peer is whom a group of entries is about.
type peer struct {
	kind     Kind
	identity uint32
}

func (p peer) compare(o peer) int {
	return cmp.Or(cmp.Compare(p.kind, o.kind), cmp.Compare(p.identity, o.identity))
}

// group holds the entries of one peer, sorted by protocol, port and length. It never changes, and is shared.
type group struct {
	peer
	entries []entry
}

func newGroup(p peer, entries []entry) *group {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port), cmp.Compare(a.bits, b.bits))
	})
	return &group{p, entries}
}

func (g *group) equal(o *group) bool {
	return g == o || g.peer == o.peer && slices.Equal(g.entries, o.entries)
}

func (g *group) key(e entry) Key {
	return Key{Identity: g.identity, Kind: g.kind, Protocol: e.protocol, PortBits: e.bits, Port: e.port}
}

func (g *group) entry(e entry) Entry { return Entry{Key: g.key(e), Rule: e.rule, Deny: e.deny} }

// count adds the entries of a group to the classes, or takes them away.
func (c *Compiled) count(g *group, by int) {
	for _, e := range g.entries {
		c.classes[g.key(e).class()] += by
	}
}

// AllowsAll tells that everything is allowed and nothing is written: the fixed policy id 1. Its entries are none.
func (c *Compiled) AllowsAll() bool { return c.allowsAll }

// Isolated tells whether a policy or the mode denies what no rule allows. One that is not isolated may have entries all
// the same: denies, and one that allows everything else.
func (c *Compiled) Isolated() bool { return c.isolated }

// ofRanges are the bits of the classes of keys that belong into policy_ranges.
const ofRanges = 0xf<<firstRangeClass | 1<<(firstOfClasses+levels)

// ofCIDRs are the bits of the classes of keys about named CIDRs.
const ofCIDRs = (1<<levels-1)<<(int(CIDR)*levels) | (1<<levels-1)<<(int(CIDROutside)*levels) | 1<<(firstRangeClass+int(CIDR)) | 1<<(firstRangeClass+int(CIDROutside))

// Shape is the set of classes of keys that there are, with [ShapeLocalhost], [ShapeNested] and [ShapeStops].
func (c *Compiled) Shape() (shape uint32) {
	for class, n := range c.classes {
		if n > 0 {
			shape |= 1 << class
		}
	}
	if c.localhost {
		shape |= ShapeLocalhost
	}
	if c.nested && shape&ofCIDRs != 0 {
		return shape | ShapeNested
	}
	return shape &^ ShapeStops
}

// Nested reports whether entries about a named CIDR count in those inside it, so that a CIDR that is new to the policy means what those around it mean.
func (c *Compiled) Nested() bool { return c.nested }

// Len is the number of entries that belong into the map policy, and into policy_ranges.
func (c *Compiled) Len() (entries, ranges int) {
	for class, n := range c.classes {
		if ofRanges>>class&1 != 0 {
			ranges += n
		} else {
			entries += n
		}
	}
	return entries, ranges
}

// Entries lists all, by kind, identity, protocol and port.
func (c *Compiled) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, g := range c.groups {
			for _, e := range g.entries {
				if !yield(g.entry(e)) {
					return
				}
			}
		}
	}
}

// Rule says what a cookie of these entries stands for.
func (c *Compiled) Rule(cookie uint32) (Rule, bool) {
	if cookie == CookieNotIsolated {
		return Rule{Path: "no policy isolates the endpoint"}, true
	}
	for _, r := range c.rules {
		if r.cookie == cookie {
			return Rule{Policy: r.ref, Path: r.Path, Deny: r.Deny}, true
		}
	}
	return Rule{}, false
}

// Missing are the prefixes that rules name and that had no identity in [Resolver.SetCIDRs]. While there are any, allows
// of them grant nothing, and denies of them deny everybody.
func (c *Compiled) Missing() []netip.Prefix { return c.missing }

// find returns the group of a peer, or nil.
func (c *Compiled) find(p peer) *group {
	i, found := slices.BinarySearchFunc(c.groups, p, func(g *group, p peer) int { return g.compare(p) })
	if !found {
		return nil
	}
	return c.groups[i]
}

// put replaces the entries of a peer, in a copy that nobody else has yet, and tells whether they were others.
func (c *Compiled) put(p peer, entries []entry) bool {
	i, found := slices.BinarySearchFunc(c.groups, p, func(g *group, p peer) int { return g.compare(p) })
	now := newGroup(p, entries)
	if found && c.groups[i].equal(now) || !found && len(entries) == 0 {
		return false
	}
	if found {
		c.count(c.groups[i], -1)
	}
	c.count(now, 1)
	switch {
	case len(entries) == 0:
		c.groups = slices.Delete(c.groups, i, i+1)
	case found:
		c.groups[i] = now
	default:
		c.groups = slices.Insert(c.groups, i, now)
	}
	return true
}

// reuse returns former when it says the same, or else c with the groups of former that are the same.
func (c *Compiled) reuse(former *Compiled) *Compiled {
	if former == nil || c == former || c.allowsAll {
		return c
	}
	same, old := 0, former.groups
	for i, g := range c.groups {
		for len(old) > 0 && old[0].compare(g.peer) < 0 {
			old = old[1:]
		}
		if len(old) > 0 && old[0].equal(g) {
			c.groups[i] = old[0]
			same++
		}
	}
	if same == len(c.groups) && same == len(former.groups) && c.isolated == former.isolated && c.nested == former.nested && !former.allowsAll &&
		slices.Equal(c.missing, former.missing) {
		return former
	}
	return c
}
