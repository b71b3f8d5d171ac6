package policy

import "slices"

// Requirements are all that policies of one subject require of peers in one direction.
type Requirements struct {
	list []ownedRequirement
}

type ownedRequirement struct {
	*PeerRequirement
	owner Ref
}

// Add adds those of a part of a policy.
func (r *Requirements) Add(owner Ref, part *Part, d Direction) {
	for i := range part.Requirements {
		if one := &part.Requirements[i]; one.Direction == d {
			r.list = append(r.list, ownedRequirement{one, owner})
		}
	}
}

// Narrow returns a rule of a policy with what is required of its peers. Without any requirement it is the rule itself, otherwise a copy.
//
// Rules that allow are narrowed by the requirements of all policies. Rules that deny are narrowed by those of clusterwide policies and of policies of
// their own namespace: who may write policies in one namespace must not lift what the whole cluster denies.
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

// narrowable reports whether a rule's author chose the peer by its labels.
func (p Peer) narrowable() bool { return p.Labels != nil && !p.Entity }
