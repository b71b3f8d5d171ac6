package policy

import (
	"fmt"
	"net/netip"
	"slices"
)

// maxExceptionSteps limits the pairs of a CIDR and an exception inside it, in all rules of one policy in one direction. They count even if the exception is of
// another CIDR: an exception has map entries of its own, with the effects of the rules about all CIDRs around it. So a compiler takes time and memory for each
// pair, and a policy of 1 MB could have 10^9.
const maxExceptionSteps = 1 << 20

// limitExceptions removes redundant CIDRs and exceptions from all rules. If the others are too many, CIDRs with exceptions fail closed: they leave allow rules, and
// lose their exceptions in deny rules.
func (p *Policy) limitExceptions() {
	p.eachRule(func(r *Rule) { r.Peers.List = mergeCIDRs(r.Peers.List) })
	for _, d := range Directions {
		if p.exceptionSteps(d) <= maxExceptionSteps {
			continue
		}
		reported := false
		p.eachRule(func(r *Rule) {
			if r.Direction != d || !slices.ContainsFunc(r.Peers.List, Peer.excepts) {
				return
			}
			if !reported {
				p.add(Problem{Path: r.Path, Reason: ReasonUnsupported, Message: fmt.Sprintf("the policy has more than %d pairs of a CIDR and an exception inside it "+
					"(%s): its allow rules allow nothing of CIDRs with exceptions, and its deny rules also deny the exceptions; use fewer", maxExceptionSteps, d)})
				reported = true
			}
			if !r.Deny {
				r.Peers.List = slices.DeleteFunc(r.Peers.List, Peer.excepts)
				return
			}
			for i := range r.Peers.List {
				r.Peers.List[i].Except = nil
			}
		})
	}
}

func (p *Policy) eachRule(f func(*Rule)) {
	for i := range p.Parts {
		for k := range p.Parts[i].Rules {
			f(&p.Parts[i].Rules[k])
		}
	}
}

// excepts reports whether the peer is a CIDR with exceptions.
func (p Peer) excepts() bool { return len(p.Except) > 0 }

// exceptionSteps counts the pairs of a CIDR and an exception inside it.
func (p *Policy) exceptionSteps(d Direction) (steps int) {
	blocks, excepts := map[netip.Prefix]int{}, map[netip.Prefix]struct{}{}
	p.eachRule(func(r *Rule) {
		for i := range r.Peers.List {
			if one := &r.Peers.List[i]; r.Direction == d && one.CIDR.IsValid() {
				blocks[one.CIDR.Masked()]++
				for _, except := range one.Except {
					excepts[except.Masked()] = struct{}{}
				}
			}
		}
	})
	for except := range excepts {
		for bits := except.Bits() - 1; bits >= 0; bits-- {
			steps += blocks[netip.PrefixFrom(except.Addr(), bits).Masked()]
		}
	}
	return steps
}

// mergeCIDRs merges the peers of a rule that have the same CIDR and scope: the rule matches the CIDR except the addresses that all of them except.
func mergeCIDRs(peers []Peer) []Peer {
	if !slices.ContainsFunc(peers, func(p Peer) bool { return p.CIDR.IsValid() }) {
		return peers
	}
	type block struct {
		cidr  netip.Prefix
		scope Scope
	}
	equal := map[block][][]netip.Prefix{} // their exceptions
	for i := range peers {
		if p := &peers[i]; p.CIDR.IsValid() {
			of := block{p.CIDR.Masked(), p.Scope}
			equal[of] = append(equal[of], p.Except)
		}
	}
	var merged []Peer
	for _, p := range peers {
		of := block{p.CIDR.Masked(), p.Scope}
		excepts, first := equal[of]
		switch {
		case p.CIDR.IsValid() && !first:
			continue
		case len(excepts) > 1:
			p.Except = common(excepts)
		}
		delete(equal, of)
		merged = append(merged, p)
	}
	return merged
}

// common returns the prefixes of the addresses that are in all lists.
func common(lists [][]netip.Prefix) (all []netip.Prefix) {
	type item struct {
		prefix netip.Prefix
		list   int
	}
	var items []item
	for i, list := range lists {
		for _, prefix := range list {
			items = append(items, item{prefix.Masked(), i})
		}
	}
	slices.SortFunc(items, func(a, b item) int { return a.prefix.Compare(b.prefix) }) // a prefix comes before the prefixes inside it
	var around []item                                                                 // the prefixes that contain the current one
	count, distinct := make([]int, len(lists)), 0                                     // how often each list is in around, and the number of lists in it
	for _, now := range items {
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(now.prefix.Addr()) {
			last := around[len(around)-1].list
			if around, count[last] = around[:len(around)-1], count[last]-1; count[last] == 0 {
				distinct--
			}
		}
		if distinct == len(lists) {
			continue // inside the last one of the result
		}
		around = append(around, now)
		if count[now.list]++; count[now.list] == 1 {
			distinct++
		}
		if distinct == len(lists) {
			all = append(all, now.prefix)
		}
	}
	return all
}
