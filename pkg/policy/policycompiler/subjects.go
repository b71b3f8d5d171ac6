package policycompiler

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Subject is an endpoint of this node.
type Subject struct {
	ID     uint16
	Labels map[string]string  // all labels, including labels of its namespace: "source:key" -> value
	Ports  []policy.NamedPort // of its containers
}

// subject is an endpoint of the resolver.
type subject struct {
	Subject
	parts []*part // parts that select it, by serial
	sets  [2]choice
}

// choice holds the rule sets of a subject in one direction.
type choice struct {
	enforced, audited held
}

// held is a rule set that a subject uses, with the result of the subject's last Compile.
type held struct {
	set      *ruleset // nil when there is none
	compiled *Compiled
}

// UpsertSubject adds or replaces an endpoint.
func (r *Resolver) UpsertSubject(s Subject) {
	was := r.subjects[s.ID]
	switch {
	case was == nil:
		was = &subject{Subject: s}
		r.subjects[s.ID] = was
	case maps.Equal(was.Labels, s.Labels) && slices.Equal(was.Ports, s.Ports):
		return
	}
	was.Subject = s
	r.unsettled[was] = struct{}{}
	r.dropAll(was)
	r.take(was, r.candidates(s.Labels))
}

// candidates returns the parts that may select an endpoint with some labels, sorted by serial. All other parts do not select it.
func (r *Resolver) candidates(labels map[string]string) (parts []*part) {
	for a := range anchorsOf(labels) {
		parts = append(parts, r.parts[a]...)
	}
	slices.SortFunc(parts, func(a, b *part) int { return cmp.Compare(a.serial, b.serial) })
	return slices.Compact(parts) // a part may be filed under several labels
}

// DeleteSubject removes an endpoint.
func (r *Resolver) DeleteSubject(id uint16) {
	s := r.subjects[id]
	if s == nil {
		return
	}
	r.dropAll(s)
	for d := range s.sets {
		r.leave(s.sets[d].enforced.set)
		r.leave(s.sets[d].audited.set)
	}
	delete(r.subjects, id)
	delete(r.unsettled, s)
}

// take adds the parts that select a subject to it, and reports whether there are any. Parts of one policy must be adjacent.
func (r *Resolver) take(s *subject, parts []*part) bool {
	before := len(s.parts)
	for _, one := range parts {
		if one.Subject.Matches(s.Labels) {
			s.parts = append(s.parts, one)
		}
	}
	r.count(s.parts[before:], 1)
	return len(s.parts) > before
}

// drop removes the parts of a policy from a subject, and reports whether it had any.
func (r *Resolver) drop(s *subject, p *policyState) bool {
	first := slices.IndexFunc(s.parts, func(one *part) bool { return one.owner == p })
	if first < 0 {
		return false
	}
	s.parts = slices.DeleteFunc(s.parts, func(one *part) bool { return one.owner == p })
	r.recount(p, -1)
	return true
}

func (r *Resolver) dropAll(s *subject) {
	r.count(s.parts, -1)
	s.parts = nil
}

// count adds n endpoints to the policies of some parts. Parts of one policy must be adjacent.
func (r *Resolver) count(parts []*part, n int) {
	for i, one := range parts {
		if i == 0 || parts[i-1].owner != one.owner {
			r.recount(one.owner, n)
		}
	}
}

func (r *Resolver) recount(p *policyState, n int) {
	p.subjects += n
	r.recounted[p.policy.Ref] = struct{}{}
}

// settle chooses the rule sets of the subjects whose parts or ports have changed, and resolves new selectors and new identities. In the mode [policy.Never]
// subjects have no rule sets.
func (r *Resolver) settle() {
	if r.options.Mode == policy.Never {
		return
	}
	for _, s := range slices.SortedFunc(maps.Keys(r.unsettled), func(a, b *subject) int { return cmp.Compare(a.ID, b.ID) }) {
		r.choose(s)
	}
	clear(r.unsettled)
	for _, number := range r.selectors.resolve() {
		r.reclassed(number, true)
	}
	r.selectAgain()
}

// choose sets the rule sets of a subject. It joins the new rule sets before it leaves the previous ones, so that parts of both stay in use.
func (r *Resolver) choose(s *subject) {
	for i, d := range policy.Directions {
		before := s.sets[i]
		all, enforced := make([]*part, 0, len(s.parts)), make([]*part, 0, len(s.parts))
		for _, p := range s.parts {
			if !p.speaksOf(d) {
				continue
			}
			all = append(all, p)
			if !p.owner.policy.Audit {
				enforced = append(enforced, p)
			}
		}
		s.sets[i].enforced.set = r.join(d, enforced, s.Ports)
		s.sets[i].audited.set = nil
		if len(all) > len(enforced) {
			s.sets[i].audited.set = r.join(d, all, s.Ports)
		}
		r.leave(before.enforced.set)
		r.leave(before.audited.set)
	}
}

// join returns the rule set of some parts, and creates it if no subject uses it.
func (r *Resolver) join(d policy.Direction, parts []*part, ports []policy.NamedPort) *ruleset {
	key := []byte{byte(d)}
	for _, p := range parts {
		key = binary.AppendUvarint(key, p.serial)
	}
	if d == policy.Ingress {
		key = appendNamed(key, parts, ports)
	}
	set := r.rulesets[string(key)]
	if set == nil {
		slices.SortFunc(parts, (*part).compare)
		set = r.newRuleset(string(key), d, parts, ports)
		r.rulesets[set.key] = set
	}
	set.subjects++
	return set
}

// appendNamed appends the numbers that the named ports of the rules have at a subject.
func appendNamed(key []byte, parts []*part, ports []policy.NamedPort) []byte {
	for _, p := range parts {
		for _, rule := range p.rules[policy.Ingress] {
			for _, named := range rule.named {
				key = append(key, 0) // separator: all other numbers are above 0
				for _, s := range named.at(ports) {
					key = binary.AppendUvarint(key, 1+uint64(s.low))
				}
			}
		}
	}
	return key
}

// leave removes a subject from a rule set, and deletes a rule set without subjects.
func (r *Resolver) leave(set *ruleset) {
	if set == nil {
		return
	}
	if set.subjects--; set.subjects > 0 {
		return
	}
	delete(r.rulesets, set.key)
	delete(r.touched, set)
	if _, released := r.unselected[set]; !released {
		set.releasePeers()
	}
	r.closeAccount(set)
}
