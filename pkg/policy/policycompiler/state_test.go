package policycompiler

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
)

// state holds all inputs of a resolver.
type state struct {
	options    policy.Options
	policies   map[policy.Ref]*policy.Policy
	identities map[uint32]map[string]string
	pods       map[string]Pod
	subjects   map[uint16]Subject
	cidrs      map[netip.Prefix]uint32
	nested     bool               // see [Resolver.SetNested]
	classes    bool               // see [Resolver.SetClasses]
	applied    map[uint32]Classes // see [Resolver.StartClasses]
}

func newState(options policy.Options) *state {
	return &state{options: options, policies: map[policy.Ref]*policy.Policy{}, identities: map[uint32]map[string]string{},
		pods: map[string]Pod{}, subjects: map[uint16]Subject{}, cidrs: map[netip.Prefix]uint32{}}
}

// stateOf returns the state of a world without the identities of CIDRs.
func stateOf(w *policytest.World) *state {
	s := newState(w.Options)
	for _, p := range w.Policies() {
		s.policies[p.Ref] = p
	}
	s.identities = w.Identities()
	for i := range w.Pods {
		p := &w.Pods[i]
		s.subjects[subjectID(i)] = Subject{ID: subjectID(i), Labels: p.Labels, Ports: p.Ports}
		s.pods[p.Object.Name] = Pod{Identity: p.Identity, Addresses: p.Addrs[:], Ports: p.Ports}
	}
	return s
}

// subjectID returns the endpoint ID of the pod with an index.
func subjectID(pod int) uint16 { return uint16(pod + 1) }

// resolver returns a new resolver with the state.
func (s *state) resolver() *Resolver {
	r := New(s.options)
	r.SetNested(s.nested)
	r.SetClasses(s.classes)
	r.SetCIDRs(maps.Clone(s.cidrs))
	for number, labels := range s.identities {
		r.UpsertIdentity(number, labels)
	}
	for key, pod := range s.pods {
		r.UpsertPod(key, pod)
	}
	for _, subject := range s.subjects {
		r.UpsertSubject(subject)
	}
	for _, p := range s.policies {
		r.UpsertPolicy(p)
	}
	r.StartClasses(s.applied, 0)
	return r
}

// sameClasses marks all classes of r as applied, and returns a state whose new resolver has the same numbers of classes as r.
func (s *state) sameClasses(r *Resolver) *state {
	for list := r.UnappliedClasses(); len(list) > 0; list = r.UnappliedClasses() {
		for _, number := range list {
			r.ClassesApplied(number)
		}
	}
	same := *s
	same.applied = maps.Clone(r.selectors.applied)
	return &same
}

// nameCIDRs gives identities to the CIDRs that need one. With keep, the other CIDRs keep their identities; otherwise they lose them.
func (s *state) nameCIDRs(r *Resolver, keep bool) {
	needed := r.NamedCIDRs()
	if !keep {
		maps.DeleteFunc(s.cidrs, func(p netip.Prefix, _ uint32) bool { return !slices.Contains(needed, p) })
	}
	used := slices.Collect(maps.Values(s.cidrs))
	next := uint32(0x01000001)
	for _, prefix := range needed {
		if s.cidrs[prefix] == 0 {
			for slices.Contains(used, next) {
				next++
			}
			s.cidrs[prefix] = next
			next++
		}
	}
	r.SetCIDRs(maps.Clone(s.cidrs))
}

// render formats a compiled policy, with rules instead of cookies.
func render(c *Compiled) string {
	if c == nil {
		return "none\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "allows all %t, isolated %t, shape %x, missing %v\n", c.AllowsAll(), c.Isolated(), c.Shape(), c.missing)
	for e := range c.Entries() {
		rule, known := c.Rule(e.Rule)
		fmt.Fprintf(&b, "  %+v deny %t by %s %s (%t)\n", e.Key, e.Deny, rule.Policy, rule.Path, known)
	}
	return b.String()
}

// renderAll formats the compiled policies of all endpoints.
func renderAll(r *Resolver, s *state) string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(s.subjects)) {
		ingress, egress := r.Compile(id)
		for _, c := range []*Compiled{ingress.Enforced, ingress.Audited, egress.Enforced, egress.Audited} {
			fmt.Fprintf(&b, "endpoint %d: %s", id, render(c))
		}
	}
	return b.String()
}
