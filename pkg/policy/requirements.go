package policy

import (
	"slices"
)

// Limits for the conditions of fromRequires and toRequires. A compiler adds all of them to each peer, so few bytes of requirements and of peers multiply to much
// memory. A condition is one [Requirement]; with several values, it counts as often as it has values. Equal ones count once.
const (
	// maxPolicyConditions limits one policy. Beyond it, the policy reports its rules, which fail closed.
	maxPolicyConditions = 100
	// MaxConditions limits all policies of one subject in one direction. Beyond it, the conditions are never met: see [Requirements.Exceeded].
	MaxConditions = 200
)

// conditions are distinct requirements up to a limit.
type conditions struct {
	list []Requirement
	size int // the sum of their values, where a requirement without values counts once
}

// add adds the requirements that are new. It reports whether they are within a limit.
func (c *conditions) add(more []Requirement, limit int) bool {
	for i := range more {
		if c.size <= limit && !slices.ContainsFunc(c.list, more[i].equal) {
			c.list = append(c.list, more[i])
			c.size += max(1, len(more[i].Values))
		}
	}
	return c.size <= limit
}

// equal reports whether two requirements have the same text.
func (r *Requirement) equal(o Requirement) bool {
	return r.Key == o.Key && r.Source == o.Source && r.Operator == o.Operator && slices.Equal(r.Values, o.Values)
}

// Requirements are the conditions on peers in one direction, from all policies of one subject. They are not safe for concurrent use.
type Requirements struct {
	allows conditions
	denies map[string]*conditions // by the namespace of the policies that have them
}

// Add adds the requirements of a part in one direction.
func (r *Requirements) Add(owner Ref, part *Part, d Direction) {
	for i := range part.Requirements {
		one := &part.Requirements[i]
		if one.Direction != d {
			continue
		}
		to := &r.allows
		if one.Deny {
			if r.denies == nil {
				r.denies = map[string]*conditions{}
			}
			if r.denies[owner.Namespace] == nil {
				r.denies[owner.Namespace] = &conditions{}
			}
			to = r.denies[owner.Namespace]
		}
		to.add(one.Labels.Requirements, MaxConditions)
	}
}

// of returns the conditions on the peers of the allow or of the deny rules of a policy.
func (r *Requirements) of(owner Ref, deny bool) conditions {
	if !deny {
		return r.allows
	}
	var all conditions
	for _, namespace := range slices.Compact([]string{"", owner.Namespace}) {
		if c := r.denies[namespace]; c != nil {
			all.add(c.list, MaxConditions)
		}
	}
	return all
}

// Exceeded reports whether the requirements of a part in one direction are among too many, after [Requirements.Add] of all parts of the subject.
func (r *Requirements) Exceeded(owner Ref, part *Part, d Direction) bool {
	var asked [2]bool // the same for all allow rules, and for all deny rules
	return slices.ContainsFunc(part.Requirements, func(one PeerRequirement) bool {
		if one.Direction != d || one.Deny && asked[1] || !one.Deny && asked[0] {
			return false
		}
		asked[0], asked[1] = asked[0] || !one.Deny, asked[1] || one.Deny
		return r.of(owner, one.Deny).size > MaxConditions
	})
}

// Narrow adds the requirements to the peers of a rule; owner is the policy of the rule. It returns the rule itself if no requirement applies, otherwise a
// copy.
//
// The requirements of all policies narrow allow rules. Deny rules are narrowed by the requirements of clusterwide policies and of policies in their own
// namespace: an author of policies in one namespace must not be able to lift a deny of the cluster.
//
// Too many requirements fail closed: no peer meets them, and they do not narrow deny rules.
func (r *Requirements) Narrow(owner Ref, rule *Rule) *Rule {
	if r.allows.size == 0 && len(r.denies) == 0 || !slices.ContainsFunc(rule.Peers.List, Peer.narrowable) {
		return rule
	}
	required := r.of(owner, rule.Deny)
	unmet := required.size > MaxConditions
	if required.size == 0 || unmet && rule.Deny {
		return rule
	}
	narrow := *rule
	narrow.Peers.List = slices.Clone(rule.Peers.List)
	if unmet {
		narrow.Peers.List = slices.DeleteFunc(narrow.Peers.List, Peer.narrowable)
		return &narrow
	}
	for i := range narrow.Peers.List {
		if p := &narrow.Peers.List[i]; p.narrowable() {
			p.Labels = &Selector{Requirements: slices.Concat(p.Labels.Requirements, required.list)}
		}
	}
	return &narrow
}

// narrowable reports whether the rule selects the peer by labels and not by an entity.
func (p Peer) narrowable() bool { return p.Labels != nil && !p.Entity }
