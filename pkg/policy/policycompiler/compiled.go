package policycompiler

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Rule describes the rule that a cookie names.
type Rule struct {
	Policy policy.Ref `json:"policy,omitzero"` // empty for [CookieNotIsolated]
	Path   string     `json:"path"`            // position of the rule in the object
	Deny   bool       `json:"deny,omitempty"`
}

// Compiled holds the entries for one direction of the endpoints with the same policies. It is immutable; its exported methods are safe for concurrent use.
type Compiled struct {
	allowsAll bool
	isolated  bool
	localhost bool     // the local host is allowed regardless of the entries
	nested    bool     // entries about a named CIDR also apply to the named CIDRs inside it
	groups    []*group // sorted, none empty
	classes   [classes]int
	tooLarge  bool   // see [Compiled.TooLarge]
	exceeded  string // see [Compiled.Exceeded]
	// conditions are the policies of [Compiled.ExceedsConditions].
	conditions []policy.Ref
	namespace  string  // see [Compiled.Namespace]
	rules      []*rule // shared with the rule set and its other results
	// missing has the prefixes that rules need and that have no identity in [Resolver.SetCIDRs]. While the list is not empty, allow rules grant nothing to
	// these prefixes, and deny rules deny more: every peer, or, for the address of a pod with a named port, all pods with the pod's identity.
	missing []netip.Prefix
}

// peer identifies the peer of a group of entries.
type peer struct {
	kind     Kind
	identity uint32
}

func (p peer) compare(o peer) int {
	return cmp.Or(cmp.Compare(p.kind, o.kind), cmp.Compare(p.identity, o.identity))
}

// group holds the entries of one peer, sorted by protocol, port and number of significant port bits. It is immutable and shared.
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

// count adds by to the class of each entry of a group.
func (c *Compiled) count(g *group, by int) {
	for _, e := range g.entries {
		c.classes[g.key(e).class()] += by
	}
}

// AllowsAll reports whether everything is allowed without entries: the fixed policy id 1.
func (c *Compiled) AllowsAll() bool { return c.allowsAll }

// Isolated reports whether a policy or the mode denies connections that no rule allows. Without isolation there may still be entries: denies, and one entry
// that allows all other connections.
func (c *Compiled) Isolated() bool { return c.isolated }

// Namespace returns the namespace of the policies, "" if all of them are cluster-wide. A policy of a namespace selects only endpoints of this namespace.
func (c *Compiled) Namespace() string { return c.namespace }

// ofRanges is the mask of the classes of keys that belong to the map policy_ranges.
const ofRanges = 0xf<<firstRangeClass | 1<<(firstOfClasses+levels)

// ofCIDRs is the mask of the classes of keys about named CIDRs.
const ofCIDRs = (1<<levels-1)<<(int(CIDR)*levels) | (1<<levels-1)<<(int(CIDROutside)*levels) | 1<<(firstRangeClass+int(CIDR)) | 1<<(firstRangeClass+int(CIDROutside))

// Shape returns the set of classes of keys that have entries, with [ShapeLocalhost], [ShapeNested] and [ShapeStops].
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

// Nested reports whether entries about a named CIDR also apply to the named CIDRs inside it, so that a CIDR that is new to the policy means the same as the
// CIDRs around it.
func (c *Compiled) Nested() bool { return c.nested }

// Len returns the number of entries for the map policy and the number of entries for policy_ranges.
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

// Entries lists all entries by kind, identity, protocol and port.
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

// Rule returns the rule that a cookie of these entries names.
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

// find returns the group of a peer, or nil.
func (c *Compiled) find(p peer) *group {
	i, found := slices.BinarySearchFunc(c.groups, p, func(g *group, p peer) int { return g.compare(p) })
	if !found {
		return nil
	}
	return c.groups[i]
}

// put replaces the entries of a peer and reports whether they have changed. c must be a copy that is not shared yet.
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

// reuse returns previous if it is equal to c, otherwise c with its groups replaced by the equal groups of previous.
func (c *Compiled) reuse(previous *Compiled) *Compiled {
	if previous == nil || c == previous || c.allowsAll {
		return c
	}
	if c.tooLarge || previous.tooLarge {
		if c.sameRules(previous) {
			return previous
		}
		return c
	}
	same, old := 0, previous.groups
	for i, g := range c.groups {
		for len(old) > 0 && old[0].compare(g.peer) < 0 {
			old = old[1:]
		}
		if len(old) > 0 && old[0].equal(g) {
			c.groups[i] = old[0]
			same++
		}
	}
	if same == len(c.groups) && same == len(previous.groups) && c.isolated == previous.isolated && c.nested == previous.nested && !previous.allowsAll &&
		c.namespace == previous.namespace && slices.Equal(c.conditions, previous.conditions) && slices.Equal(c.missing, previous.missing) &&
		c.DeniesByLabels() == previous.DeniesByLabels() {
		return previous
	}
	return c
}
