package policymap

import (
	"maps"
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// selector is a choice of identities, shared by all rules that make it.
type selector struct {
	key        string
	choice     *policy.Selector // nil when the identities are fixed
	identities []uint32         // sorted
	anchors    []anchor         // under which it is filed
	rules      int              // that make the choice
	users      map[*ruleset]struct{}
	pending    bool // the identities are not known yet
	mark       bool // used while candidates are gathered
}

// known is an identity.
type known struct {
	labels  map[string]string
	chosen  []*selector // those that choose it by labels, in no order
	anchors []anchor
}

// selectors keeps, for every choice that rules make, the identities that it chooses. One identity more is compared with
// the few selectors whose anchor it has; many selectors at once are resolved in one pass over the identities.
type selectors struct {
	byKey      map[string]*selector
	byAnchor   map[anchor][]*selector
	pending    []*selector
	identities map[uint32]*known
	fixed      map[uint32][]*selector // selectors of fixed identities, by number
}

func newSelectors() *selectors {
	return &selectors{byKey: map[string]*selector{}, byAnchor: map[anchor][]*selector{}, identities: map[uint32]*known{},
		fixed: map[uint32][]*selector{}}
}

// ofLabels returns the selector of a choice by labels, and counts one rule more that makes it.
func (c *selectors) ofLabels(choice *policy.Selector) *selector {
	key, choice := keyOf(choice)
	s := c.byKey[key]
	if s == nil {
		s = &selector{key: key, choice: choice, users: map[*ruleset]struct{}{}, pending: true}
		s.anchors = c.anchorsFor(choice)
		for _, a := range s.anchors {
			c.byAnchor[a] = append(c.byAnchor[a], s)
		}
		c.byKey[key] = s
		c.pending = append(c.pending, s)
	}
	s.rules++
	return s
}

// ofNumbers is the same for fixed identities, which need not be known.
func (c *selectors) ofNumbers(numbers []uint32) *selector {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	key := numbersKey(numbers)
	s := c.byKey[key]
	if s == nil {
		s = &selector{key: key, identities: numbers, users: map[*ruleset]struct{}{}}
		for _, number := range numbers {
			c.fixed[number] = append(c.fixed[number], s)
		}
		c.byKey[key] = s
	}
	s.rules++
	return s
}

// release takes back what ofLabels or ofNumbers gave to one rule.
func (c *selectors) release(s *selector) {
	if s.rules--; s.rules > 0 {
		return
	}
	delete(c.byKey, s.key)
	c.pending = slices.DeleteFunc(c.pending, s.is)
	for _, a := range s.anchors {
		if c.byAnchor[a] = slices.DeleteFunc(c.byAnchor[a], s.is); len(c.byAnchor[a]) == 0 {
			delete(c.byAnchor, a)
		}
	}
	for _, number := range s.identities {
		if s.choice == nil {
			if c.fixed[number] = slices.DeleteFunc(c.fixed[number], s.is); len(c.fixed[number]) == 0 {
				delete(c.fixed, number)
			}
		} else if k := c.identities[number]; k != nil {
			k.chosen = slices.DeleteFunc(k.chosen, s.is)
		}
	}
}

func (s *selector) is(o *selector) bool { return s == o }

// of lists the selectors that choose an identity, the fixed ones among them.
func (c *selectors) of(number uint32) []*selector {
	chosen := c.fixed[number]
	if k := c.identities[number]; k != nil {
		chosen = append(slices.Clip(chosen), k.chosen...)
	}
	return chosen
}

// upsert adds an identity, or changes its labels.
func (c *selectors) upsert(number uint32, labels map[string]string) {
	if number == identity.Unknown {
		return // nothing chooses it
	}
	k := c.identities[number]
	switch {
	case k == nil:
		k = &known{}
		c.identities[number] = k
	case maps.Equal(k.labels, labels):
		return
	}
	k.labels, k.anchors = labels, anchorsOf(labels)
	c.choose(number, k, func(s *selector) bool { return !s.pending })
}

// remove forgets an identity.
func (c *selectors) remove(number uint32) {
	k := c.identities[number]
	if k == nil {
		return
	}
	delete(c.identities, number)
	for _, s := range k.chosen {
		s.lose(number)
	}
}

// choose brings the selectors that are asked about up to date with one identity.
func (c *selectors) choose(number uint32, k *known, asked func(*selector) bool) {
	var now []*selector
	for _, a := range k.anchors {
		for _, s := range c.byAnchor[a] {
			if asked(s) && !s.mark && s.choice.Matches(k.labels) {
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
			s.mark = false // what stays marked is new
		default:
			s.lose(number)
		}
	}
	clear(k.chosen[len(kept):])
	k.chosen = kept
	for _, s := range now {
		if s.mark {
			s.mark = false
			k.chosen = append(k.chosen, s)
			s.gain(number)
		}
	}
}

func (s *selector) gain(number uint32) {
	i, _ := slices.BinarySearch(s.identities, number)
	s.identities = slices.Insert(s.identities, i, number)
	for user := range s.users {
		user.touch(number)
	}
}

func (s *selector) lose(number uint32) {
	if i, found := slices.BinarySearch(s.identities, number); found {
		s.identities = slices.Delete(s.identities, i, i+1)
	}
	for user := range s.users {
		user.touch(number)
	}
}

// few is how many selectors are compared with every identity one after the other; for more, anchors save time.
const few = 8

// resolve finds the identities of selectors that are new.
func (c *selectors) resolve() {
	switch {
	case len(c.pending) == 0:
		return
	case len(c.pending) <= few:
		for number, k := range c.identities {
			for _, s := range c.pending {
				if s.choice.Matches(k.labels) {
					s.identities = append(s.identities, number)
					k.chosen = append(k.chosen, s)
				}
			}
		}
		for _, s := range c.pending {
			slices.Sort(s.identities)
		}
	default:
		asked := func(s *selector) bool { return s.pending }
		for _, number := range slices.Sorted(maps.Keys(c.identities)) {
			c.choose(number, c.identities[number], asked)
		}
	}
	for _, s := range c.pending {
		s.pending = false
	}
	c.pending = nil
}
