package policycompiler

import (
	"iter"
	"maps"
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// selector is a choice of identities, shared by all rules that make it.
type selector struct {
	key        string
	choice     *policy.Selector // nil when the identities are fixed
	extent     extent           // kind of classes for which the choice is evaluated
	identities []uint32         // sorted, without identities that are chosen by class
	classes    []uint32         // sorted
	anchors    []anchor         // of byAnchor
	rules      int              // number of rules that make the choice
	users      map[*ruleset]struct{}
	accounts   map[*account]int // number of rule sets that hold it, by account
	pending    bool             // the identities are not known yet
	mark       bool             // used while candidates are gathered
}

// known is an identity or a class of identities.
type known struct {
	peer           // of entries about it
	extent  extent // kind of the class
	labels  map[string]string
	chosen  []*selector // selectors that choose it by labels, in no order
	classes [2]*class   // of an identity: cluster and namespace; nil when it has none
}

// selectors holds the chosen identities of every choice that rules make. A new identity is compared only with the selectors under its anchors, and a new
// selector only with the identities that have a label which it requires, unless the label is common. Many new selectors are resolved in one pass over the
// identities.
type selectors struct {
	byKey      map[string]*selector
	byAnchor   anchored[*selector]
	pending    []*selector
	identities map[uint32]*known
	labelled   labelIndex             // of identities
	fixed      map[uint32][]*selector // selectors of fixed identities, by number
	arrivals   map[uint32]struct{}    // identities that are new or have changed
	shrink     func() bool            // see [Resolver.shrink]; it may release selectors
	overdrawn  func() bool            // reports whether shrink may release any
	identityClasses
}

func newSelectors() *selectors {
	return &selectors{byKey: map[string]*selector{}, byAnchor: anchored[*selector]{}, identities: map[uint32]*known{}, labelled: newLabelIndex(),
		fixed: map[uint32][]*selector{}, arrivals: map[uint32]struct{}{}, identityClasses: newIdentityClasses()}
}

// ofLabels returns the selector of a choice by labels, and counts one rule more that makes it.
func (c *selectors) ofLabels(choice *policy.Selector) *selector {
	key, choice := keyOf(choice)
	s := c.byKey[key]
	if s == nil {
		s = &selector{key: key, choice: choice, extent: extentOf(choice), users: map[*ruleset]struct{}{}, accounts: map[*account]int{}, pending: true}
		s.anchors = c.byAnchor.file(s, choice)
		c.byKey[key] = s
		c.pending = append(c.pending, s)
	}
	s.rules++
	return s
}

// ofNumbers returns the selector of fixed identities, and counts one rule more that makes it. The identities need not be known.
func (c *selectors) ofNumbers(numbers []uint32) *selector {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	key := numbersKey(numbers)
	s := c.byKey[key]
	if s == nil {
		s = &selector{key: key, identities: numbers, users: map[*ruleset]struct{}{}, accounts: map[*account]int{}}
		for _, number := range numbers {
			c.fixed[number] = append(c.fixed[number], s)
		}
		c.byKey[key] = s
	}
	s.rules++
	return s
}

// release reverts one call of ofLabels or ofNumbers for each selector. A policy may have thousands of selectors with common anchors and identities, so each of
// these is visited once for all selectors.
func (c *selectors) release(list ...*selector) {
	var byLabels []*selector
	anchors, numbers := map[anchor]struct{}{}, map[uint32]struct{}{}
	for _, s := range list {
		if s.rules--; s.rules > 0 {
			continue
		}
		delete(c.byKey, s.key)
		if s.choice == nil {
			for _, number := range s.identities {
				numbers[number] = struct{}{}
			}
			continue
		}
		byLabels = append(byLabels, s)
		for _, a := range s.anchors {
			anchors[a] = struct{}{}
		}
	}
	for number := range numbers {
		if c.fixed[number] = slices.DeleteFunc(c.fixed[number], (*selector).unused); len(c.fixed[number]) == 0 {
			delete(c.fixed, number)
		}
	}
	c.pending = slices.DeleteFunc(c.pending, (*selector).unused)
	c.byAnchor.removeFunc(anchors, (*selector).unused)
	c.unchoose(byLabels)
}

// unused reports whether no rule makes the choice any more.
func (s *selector) unused() bool { return s.rules == 0 }

// unchoose empties choices by labels. The caller must recompile their users.
func (c *selectors) unchoose(list []*selector) {
	gone, chosen := map[*selector]struct{}{}, map[*known]struct{}{}
	for _, s := range list {
		gone[s] = struct{}{}
		for _, number := range s.identities {
			chosen[c.identities[number]] = struct{}{}
		}
		for _, number := range s.classes {
			chosen[&c.byNumber[number].known] = struct{}{}
		}
		s.count(-s.size())
		s.identities, s.classes = nil, nil
	}
	for k := range chosen {
		k.chosen = slices.DeleteFunc(k.chosen, func(s *selector) bool { _, found := gone[s]; return found })
	}
}

// of lists the selectors that choose an identity, the fixed ones among them, or a class.
func (c *selectors) of(p peer) []*selector {
	if p.kind == Class {
		if k := c.byNumber[p.identity]; k != nil {
			return k.chosen
		}
		return nil
	}
	chosen := c.fixed[p.identity]
	if k := c.identities[p.identity]; k != nil {
		chosen = append(slices.Clip(chosen), k.chosen...)
	}
	return chosen
}

// upsert adds an identity, or changes its labels. [selectors.resolve] finds the selectors that choose it.
func (c *selectors) upsert(number uint32, labels map[string]string) {
	if number == identity.Unknown {
		return // no selector chooses it
	}
	k := c.identities[number]
	switch {
	case k == nil:
		k = &known{peer: peer{Identity, number}}
		c.identities[number] = k
	case maps.Equal(k.labels, labels):
		return
	}
	c.labelled.remove(number, k.labels)
	c.labelled.add(number, labels)
	k.labels = labels
	c.arrivals[number] = struct{}{}
}

// remove deletes an identity. It reports whether the identity had classes.
func (c *selectors) remove(number uint32) (classed bool) {
	k := c.identities[number]
	if k == nil {
		return false
	}
	delete(c.identities, number)
	delete(c.arrivals, number)
	c.labelled.remove(number, k.labels)
	for _, s := range k.chosen {
		s.lose(k.peer)
	}
	classed = k.classes[0] != nil
	c.setClasses(k, [2]*class{})
	return classed
}

// settled reports whether the identities and classes of a selector are known.
func settled(s *selector) bool { return !s.pending }

// choose updates one identity or class in the selectors for which asked returns true.
func (c *selectors) choose(k *known, asked func(*selector) bool) {
	var now []*selector
	for a := range anchorsOf(k.labels) {
		for _, s := range c.byAnchor[a] {
			if asked(s) && !s.mark && c.decides(s, k) && s.choice.Matches(k.labels) {
				s.mark = true
				now = append(now, s)
			}
		}
	}
	kept := k.chosen[:0]
	for _, s := range k.chosen {
		switch {
		case s.mark || !asked(s):
			kept = append(kept, s)
			s.mark = false // selectors that stay marked are new
		default:
			s.lose(k.peer)
		}
	}
	clear(k.chosen[len(kept):])
	k.chosen = kept
	for _, s := range now {
		if s.mark {
			s.mark = false
			k.chosen = append(k.chosen, s)
			s.gain(k.peer)
		}
	}
}

// numbers returns the list of chosen identities or of chosen classes.
func (s *selector) numbers(kind Kind) *[]uint32 {
	if kind == Class {
		return &s.classes
	}
	return &s.identities
}

func (s *selector) gain(p peer) {
	list := s.numbers(p.kind)
	i := len(*list)
	if i > 0 && (*list)[i-1] > p.identity {
		i, _ = slices.BinarySearch(*list, p.identity)
	}
	*list = slices.Insert(*list, i, p.identity)
	s.count(1)
	if s.pending {
		return // its users are stale
	}
	for user := range s.users {
		user.touch(p)
	}
}

func (s *selector) lose(p peer) {
	list := s.numbers(p.kind)
	if i, found := slices.BinarySearch(*list, p.identity); found {
		*list = slices.Delete(*list, i, i+1)
		s.count(-1)
	}
	for user := range s.users {
		user.touch(p)
	}
}

// few is the largest number of selectors that are compared with every identity one by one. For more selectors, anchors save time.
const few = 8

// resolve finds the selectors of new identities, and the identities and classes of new selectors. It returns the identities whose classes have changed.
func (c *selectors) resolve() (reclassed []uint32) {
	for _, number := range slices.Sorted(maps.Keys(c.arrivals)) {
		k := c.identities[number]
		before := k.classes
		c.classify(k)
		if k.classes != before {
			reclassed = append(reclassed, number)
		}
		c.choose(k, settled)
		c.shrink()
	}
	if len(c.arrivals) > 0 {
		c.arrivals = map[uint32]struct{}{} // iterating over a map takes time by its largest size
	}
	c.resolvePending()
	return reclassed
}

// resolvePending finds the identities and classes of new selectors: first of those that it can compare with few identities, and then of the others, in one pass
// over all.
func (c *selectors) resolvePending() {
	c.shrink()
	if len(c.pending) == 0 {
		return
	}
	for again := true; again; again = c.shrink() {
		c.resolveByLabel()
	}
	switch {
	case len(c.pending) == 0:
		return
	case len(c.pending) <= few:
		for k := range c.all() {
			for _, s := range c.pending {
				c.compare(s, k)
			}
			c.shrink()
		}
		for _, s := range c.pending {
			s.sort()
		}
	default:
		asked := func(s *selector) bool { return s.pending }
		for _, k := range slices.SortedFunc(c.all(), func(a, b *known) int { return a.compare(b.peer) }) {
			c.choose(k, asked)
			c.shrink()
		}
	}
	for _, s := range c.pending {
		s.pending = false
	}
	c.pending = nil
}

// resolveByLabel resolves the pending selectors that require a label which few identities have. Altogether it compares at most as many pairs as there are
// identities, so that it never takes much longer than a pass over all.
func (c *selectors) resolveByLabel() {
	left := len(c.identities)
	c.pending = slices.DeleteFunc(c.pending, func(s *selector) bool {
		numbers, listed := c.labelled.candidates(s.choice, left)
		cost := len(numbers)
		ofClasses := c.classed && s.extent != ofIdentity
		if ofClasses {
			cost += len(c.byNumber)
		}
		if !listed || cost > left || c.overdrawn() {
			return false
		}
		left -= cost
		for _, number := range numbers {
			c.compare(s, c.identities[number])
		}
		if ofClasses {
			for _, of := range c.byNumber {
				c.compare(s, &of.known)
			}
		}
		s.sort()
		s.pending = false
		return true
	})
}

// compare adds k to a new selector if the selector chooses it. The caller must sort the selector.
func (c *selectors) compare(s *selector, k *known) {
	if c.decides(s, k) && s.choice.Matches(k.labels) {
		list := s.numbers(k.kind)
		*list = append(*list, k.identity)
		s.count(1)
		k.chosen = append(k.chosen, s)
	}
}

func (s *selector) sort() {
	slices.Sort(s.identities)
	slices.Sort(s.classes)
}

// all iterates over the identities and the classes.
func (c *selectors) all() iter.Seq[*known] {
	return func(yield func(*known) bool) {
		for _, k := range c.identities {
			if !yield(k) {
				return
			}
		}
		for _, of := range c.byNumber {
			if !yield(&of.known) {
				return
			}
		}
	}
}
