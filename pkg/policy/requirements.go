package policy

import "slices"

// Requirements are the conditions on peers in one direction, from all policies of one subject.
type Requirements struct {
	list []ownedRequirement
}

type ownedRequirement struct {
	*PeerRequirement
	owner Ref
}

// Add adds the requirements of a part in one direction.
func (r *Requirements) Add(owner Ref, part *Part, d Direction) {
	for i := range part.Requirements {
		if one := &part.Requirements[i]; one.Direction == d {
			r.list = append(r.list, ownedRequirement{one, owner})
		}
	}
}

// Narrow adds the requirements to the peers of a rule; owner is the policy of the rule. It returns the rule itself if no requirement applies, otherwise a
// copy.
//
// The requirements of all policies narrow allow rules. Deny rules are narrowed by the requirements of clusterwide policies and of policies in their own
// namespace: an author of policies in one namespace must not be able to lift a deny of the cluster.
func (r *Requirements) Narrow(owner Ref, rule *Rule) *Rule {
	var required []Requirement
	for _, one := range r.list {
		if one.Deny == rule.Deny && (!rule.Deny || one.owner.Namespace == "" || one.owner.Namespace == owner.Namespace) {
			required = append(required, one.Labels.Requirements...)
		}
	}
	if len(required) == 0 || !slices.ContainsFunc(rule.Peers.List, Peer.narrowable) {
		return rule
	}
	narrow := *rule
	narrow.Peers.List = slices.Clone(rule.Peers.List)
	for i := range narrow.Peers.List {
		if p := &narrow.Peers.List[i]; p.narrowable() {
			p.Labels = &Selector{Requirements: slices.Concat(p.Labels.Requirements, required)}
		}
	}
	return &narrow
}

// narrowable reports whether the rule selects the peer by labels and not by an entity.
func (p Peer) narrowable() bool { return p.Labels != nil && !p.Entity }
