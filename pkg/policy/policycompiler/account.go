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
	r.mayFit = true
	if delete(set.account.sets, set); len(set.account.sets) == 0 {
		delete(r.accounts, set.namespace)
		delete(r.overdrawn, set.account)
	}
}

func (a *account) add(n int) {
	a.resolver.mayFit = a.resolver.mayFit || n < 0
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
	peers int // that the account must have free before another attempt
	known int // number of identities when the peers were counted
}

// shrink releases the peers of the largest rule sets of each account beyond the limit, until the account is within the limit. It reports whether it has
// released any. See [account.victim].
func (r *Resolver) shrink() (released bool) {
	for a := range r.overdrawn {
		had := map[*ruleset]map[*selector]int{} // sizes of the selectors of released rule sets
		for a.peers > r.limits.peers {
			set := a.victim()
			if set == nil {
				break
			}
			had[set] = make(map[*selector]int, len(set.held))
			for s := range set.held {
				had[set][s] = s.size()
			}
			r.unselected[set] = &unselected{}
			set.releasePeers()
			set.invalidate()
		}
		for set, sizes := range had {
			lacks := 0
			for s, size := range sizes {
				if s.accounts[a] == 0 { // no other rule set has it
					lacks += size
				}
			}
			if set == r.tried {
				lacks = max(lacks, a.beforeNext())
			}
			*r.unselected[set] = unselected{lacks, len(r.selectors.identities)}
		}
		released = released || len(had) > 0
		r.mayFit = true
		delete(r.overdrawn, a)
	}
	return released
}

// beforeNext returns the peers that the account must have free before a rule set is tried that did not fit: an eighth of the limit more than now, or all. The
// peers that had been found when it was released may be few of its peers.
func (a *account) beforeNext() int {
	limit := a.resolver.limits.peers
	more := limit - a.peers + limit/8
	if a.peers > 0 {
		return min(more, limit)
	}
	return more
}

// victim returns the rule set whose peers are released next: the one that [Resolver.selectAgain] tries, otherwise the one that selects the most peers. It returns
// nil if no rule set selects any.
func (a *account) victim() (largest *ruleset) {
	if tried := a.resolver.tried; tried != nil && tried.account == a && len(tried.held) > 0 {
		return tried
	}
	most := 0
	for set := range a.sets {
		size := 0
		for s := range set.held {
			size += s.size()
		}
		if size > most || size == most && size > 0 && set.key < largest.key {
			largest, most = set, size
		}
	}
	return largest
}

// selectAgain selects the peers of released rule sets that may fit into their accounts again: other rule sets need less (after a failed attempt, by an eighth of
// the limit), or an eighth of the identities was deleted. Otherwise each change in a cluster would cost as much as a new rule set. If the one with the fewest
// peers does not fit, no other is tried. If it fits, the next one may have the same selectors.
func (r *Resolver) selectAgain() {
	if len(r.unselected) == 0 || !r.mayFit {
		return
	}
	r.mayFit = false
	order := slices.SortedFunc(maps.Keys(r.unselected), func(a, b *ruleset) int {
		return cmp.Or(cmp.Compare(r.unselected[a].peers, r.unselected[b].peers), cmp.Compare(a.key, b.key))
	})
	known, fits, failed := len(r.selectors.identities), map[*account]bool{}, map[*account]bool{}
	for _, set := range order {
		u, peers := r.unselected[set], r.unselected[set].peers
		if known < u.known-u.known/8 {
			peers = peers * known / u.known
		}
		switch {
		case failed[set.account]:
			u.known = known
		case fits[set.account] || set.account.peers+peers <= r.limits.peers:
			delete(r.unselected, set)
			r.tried = set
			set.choosePeers()
			set.invalidate()
			r.selectors.resolvePending()
			r.tried = nil
			_, failed[set.account] = r.unselected[set]
			fits[set.account] = !failed[set.account]
		}
	}
}
