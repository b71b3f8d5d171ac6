package policycompiler

import (
	"cmp"
	"maps"
	"slices"
)

// account counts the peers that the rule sets of one namespace select by labels: identities and classes, once for each selector. A node keeps the peers of each
// selector in memory, and rule sets share selectors. Rule sets of cluster-wide policies alone have an account of their own.
type account struct {
	resolver *Resolver
	peers    int
	sets     map[*ruleset]struct{} // all rule sets of the namespace
}

// accountOf returns the account of the namespace of a new rule set.
func (r *Resolver) accountOf(set *ruleset) *account {
	a := r.accounts[set.namespace]
	if a == nil {
		a = &account{resolver: r, sets: map[*ruleset]struct{}{}}
		r.accounts[set.namespace] = a
	}
	a.sets[set] = struct{}{}
	return a
}

// closeAccount removes a rule set from its account.
func (r *Resolver) closeAccount(set *ruleset) {
	delete(r.unselected, set)
	if delete(set.account.sets, set); len(set.account.sets) == 0 {
		delete(r.accounts, set.namespace)
		delete(r.overdrawn, set.account)
	}
}

func (a *account) add(n int) {
	if a.peers += n; a.peers > a.resolver.limits.peers {
		a.resolver.overdrawn[a] = struct{}{}
	}
}

// size returns the number of peers of a selector.
func (s *selector) size() int { return len(s.identities) + len(s.classes) }

// count adds n peers of a selector to the accounts of the rule sets with it.
func (s *selector) count(n int) {
	for a := range s.accounts {
		a.add(n)
	}
}

// hold counts the peers of a selector in the account of a rule set.
func (s *selector) hold(set *ruleset) {
	if s.accounts[set.account]++; s.accounts[set.account] == 1 {
		set.account.add(s.size())
	}
}

// drop reverts [selector.hold].
func (s *selector) drop(set *ruleset) {
	if s.accounts[set.account]--; s.accounts[set.account] == 0 {
		delete(s.accounts, set.account)
		set.account.add(-s.size())
	}
}

// unselected describes a rule set without selected peers.
type unselected struct {
	peers int // that it had when it was removed from its account; the rule set may need more
	known int // number of identities at that time
}

// shrink releases the peers of the largest rule sets of each account beyond the limit, until the account is within the limit. It reports whether it has
// released any.
func (r *Resolver) shrink() (released bool) {
	for a := range r.overdrawn {
		for a.peers > r.limits.peers {
			var largest *ruleset
			most := 0
			for set := range a.sets {
				size := 0
				for s := range set.held {
					size += s.size()
				}
				if _, out := r.unselected[set]; !out && (largest == nil || size > most || size == most && set.key < largest.key) {
					largest, most = set, size
				}
			}
			if largest == nil {
				break
			}
			before := a.peers
			largest.releasePeers()
			largest.invalidate()
			r.unselected[largest] = &unselected{before - a.peers, len(r.selectors.identities)}
			released = true
		}
		delete(r.overdrawn, a)
	}
	return released
}

// selectAgain selects the peers of released rule sets that may fit into their accounts again: other rule sets need less, or an eighth of the identities was
// deleted. Otherwise each change in a cluster would cost as much as a new rule set.
func (r *Resolver) selectAgain() {
	if len(r.unselected) == 0 {
		return
	}
	order := slices.SortedFunc(maps.Keys(r.unselected), func(a, b *ruleset) int {
		return cmp.Or(cmp.Compare(r.unselected[a].peers, r.unselected[b].peers), cmp.Compare(a.key, b.key))
	})
	for _, set := range order {
		u, known := r.unselected[set], len(r.selectors.identities)
		if known < u.known-u.known/8 {
			u.peers, u.known = u.peers*known/u.known, known
		}
		if set.account.peers+u.peers > r.limits.peers {
			continue
		}
		delete(r.unselected, set)
		set.choosePeers()
		set.invalidate()
		r.selectors.resolvePending()
	}
}
