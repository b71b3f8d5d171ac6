package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// CIDRGroups maps names to CiliumCIDRGroups.
type CIDRGroups map[string]*cilium.CIDRGroup

// GroupChoice selects one CiliumCIDRGroup by its name, or all groups with some labels.
type GroupChoice struct {
	Name   string    `json:"name,omitempty"`
	Labels *Selector `json:"labels,omitempty"` // nil for a choice by name; sources are [sourceGroup]
}

// sourceGroup is the source of CiliumCIDRGroup labels in selectors.
const sourceGroup = "cidrgroup"

// includes reports whether a group is chosen.
func (c *GroupChoice) includes(g *cilium.CIDRGroup) bool {
	if c.Labels == nil {
		return c.Name == g.Name
	}
	all := make(map[string]string, len(g.Labels))
	for key, value := range g.Labels {
		all[sourceGroup+":"+key] = value
	}
	return c.Labels.Matches(all)
}

// RefersTo reports whether the policy depends on the group. If the labels of a group change, the caller must check its previous and its new version.
func (p *Policy) RefersTo(g *cilium.CIDRGroup) bool {
	return slices.ContainsFunc(p.Groups, func(c GroupChoice) bool { return c.includes(g) })
}

// cidrSet parses CIDRs with exceptions. The CIDRs are in the item itself or in groups.
func (r *ciliumRule) cidrSet(path string, item json.RawMessage) ([]Peer, error) {
	fields, err := object(item)
	if err != nil {
		return nil, err
	}
	for _, field := range unknown(fields, "cidr", "cidrGroupRef", "cidrGroupSelector", "except") {
		r.unsupported(path+"."+field, field+" is not supported", "write the CIDRs into the policy")
		return nil, errReported
	}
	var set struct {
		CIDR     string          `json:"cidr"`
		Group    string          `json:"cidrGroupRef"`
		Selector json.RawMessage `json:"cidrGroupSelector"`
		Except   []string        `json:"except"`
	}
	if err := decode(item, &set); err != nil {
		return nil, err
	}
	if _, excepts := fields["except"]; len(fields) != 2 && excepts || len(fields) != 1 && !excepts {
		return nil, errors.New("it must have one of cidr, cidrGroupRef and cidrGroupSelector")
	}
	switch _, byName := fields["cidrGroupRef"]; {
	case byName && set.Group == "":
		return nil, errors.New("cidrGroupRef is empty: name a CiliumCIDRGroup")
	case !byName && set.Selector == nil:
		block, err := parseCIDR(set.CIDR)
		if err != nil {
			return nil, err
		}
		return without([]netip.Prefix{block}, r.excepts(path, set.Except, block)), nil
	}
	choice := GroupChoice{Name: set.Group}
	if set.Selector != nil {
		if choice.Labels, err = groupSelector(set.Selector); err != nil {
			return nil, err
		}
	}
	return r.group(path, choice, r.excepts(path, set.Except, netip.Prefix{}))
}

// excepts parses exceptions. If block is valid, the exceptions must lie in it.
func (r *ciliumRule) excepts(path string, texts []string, block netip.Prefix) (list []netip.Prefix) {
	for i, text := range texts {
		except, err := parseCIDR(text)
		if err == nil && block.IsValid() && (!block.Contains(except.Addr()) || except.Bits() < block.Bits()) {
			err = errors.New(quote(text) + " does not lie in " + block.String())
		}
		if err != nil {
			r.invalid(fmt.Sprintf("%s.except[%d]", path, i), short(err)) // an invalid exception does not narrow a deny rule
			continue
		}
		list = append(list, except)
	}
	return list
}

// without returns peers that match all addresses in blocks except the addresses in excepts.
func without(blocks, excepts []netip.Prefix) (peers []Peer) {
	for _, block := range blocks {
		p := Peer{CIDR: block, Scope: Outside}
		excepted := false
		for _, except := range excepts {
			switch {
			case except.Bits() <= block.Bits() && except.Contains(block.Addr()):
				excepted = true
			case block.Contains(except.Addr()):
				p.Except = append(p.Except, except)
			}
		}
		if !excepted {
			peers = append(peers, p)
		}
	}
	return peers
}

// Limits for one policy. A policy has up to 1 MB of text, and few bytes can repeatedly select groups with very many CIDRs. Rules beyond a limit fail
// closed.
const (
	maxChoices    = 1000    // distinct choices of groups
	maxGroupPeers = 64_000  // CIDRs of groups and exceptions from them, in all rules together
	maxGroupSteps = 1 << 20 // comparisons: groups and CIDRs, once for each choice and for each exception
)

// groupReader resolves each choice of a policy once, and counts towards the limits.
type groupReader struct {
	chosen       map[choiceKey]*chosenGroups
	peers, steps int // so far
}

// choiceKey identifies a choice: one of the fields is empty.
type choiceKey struct{ name, labels string }

// chosenGroups is the result of a choice.
type chosenGroups struct {
	groups []*cilium.CIDRGroup
	blocks []netip.Prefix // sorted, without duplicates; immutable
	err    error
}

// choose returns the groups of a choice, and records that the policy depends on the choice.
func (r *ciliumRule) choose(choice GroupChoice) (*chosenGroups, error) {
	g := &r.groups
	key := choiceKey{name: choice.Name}
	if choice.Labels != nil {
		text, err := json.Marshal(choice.Labels)
		if err != nil {
			return nil, err
		}
		key.labels = string(text)
	}
	found := g.chosen[key]
	switch {
	case found != nil:
		return found, found.err
	case len(g.chosen) == maxChoices:
		return nil, fmt.Errorf("the policy chooses groups in more than %d ways", maxChoices)
	case g.chosen == nil:
		g.chosen = map[choiceKey]*chosenGroups{}
	}
	found = &chosenGroups{}
	g.chosen[key] = found
	r.policy.Groups = append(r.policy.Groups, choice)
	steps := r.env.including(&choice, found)
	for _, group := range found.groups {
		steps += len(group.CIDRs)
	}
	if g.steps += steps; g.steps > maxGroupSteps {
		found.err = errTooMany
		return nil, errTooMany
	}
	for _, group := range found.groups {
		found.blocks = append(found.blocks, group.CIDRs...)
	}
	slices.SortFunc(found.blocks, netip.Prefix.Compare)
	found.blocks = slices.Compact(found.blocks)
	return found, nil
}

// including appends the groups of a choice, sorted by name, and returns the number of groups that it compared.
func (e *Environment) including(choice *GroupChoice, found *chosenGroups) (steps int) {
	if choice.Labels == nil {
		if group := e.CIDRGroups[choice.Name]; group != nil {
			found.groups = append(found.groups, group)
		}
		return 1
	}
	for _, group := range e.CIDRGroups {
		if choice.includes(group) {
			found.groups = append(found.groups, group)
		}
	}
	slices.SortFunc(found.groups, func(a, b *cilium.CIDRGroup) int { return strings.Compare(a.Name, b.Name) })
	return len(e.CIDRGroups)
}

// group returns peers for the CIDRs of the selected groups. A choice without groups has no peers, also in deny rules, and is reported.
func (r *ciliumRule) group(path string, choice GroupChoice, excepts []netip.Prefix) ([]Peer, error) {
	found, err := r.choose(choice)
	switch {
	case err != nil:
		return nil, err
	case r.env.GroupsUnread:
		r.unread(path, "CiliumCIDRGroups", "definitions and permissions")
		return nil, errReported
	}
	field, missing := path+".cidrGroupRef", "there is no CiliumCIDRGroup "+quote(choice.Name)
	if choice.Labels != nil {
		field, missing = path+".cidrGroupSelector", "no CiliumCIDRGroup has these labels"
	}
	if len(found.groups) == 0 {
		r.absent(field, missing)
	}
	for _, g := range found.groups {
		if len(g.Problems) > 0 {
			r.policy.add(Problem{Path: r.path + "." + field, Reason: ReasonInvalid, Invalid: true, Message: "entries of the CiliumCIDRGroup " + quote(g.Name) +
				" cannot be read and match nothing (" + quote(g.Problems[0]) + "); correct them"})
		}
	}
	g := &r.groups
	g.steps += len(found.blocks) * len(excepts)
	if g.steps > maxGroupSteps || g.peers+len(found.blocks) > maxGroupPeers {
		return nil, errTooMany
	}
	peers := without(found.blocks, excepts)
	g.peers += len(peers)
	for i := range peers {
		g.peers += len(peers[i].Except)
	}
	if g.peers > maxGroupPeers {
		return nil, errTooMany
	}
	return peers, nil
}

var errTooMany = fmt.Errorf("the policy has more than %d CIDRs of groups and exceptions from them, or too many to compare; use fewer groups", maxGroupPeers)

// absent reports an object that does not exist and to which the rule refers. It matches no peer until it is created; the other peers of the rule are
// enforced.
func (r *ciliumRule) absent(path, what string) {
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonAbsent, Message: what + ": " + r.nothing() + " until there is one; create it or correct the policy"})
}

// unread reports objects that cannot be read, and closes the rule: a deny rule could apply to objects that exist. What is missing is part of the remedy.
func (r *ciliumRule) unread(path, objects, missing string) {
	r.closed = true
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonAbsent, Message: objects + " cannot be read: " + outcome(r.deny) +
		" until they can; install the " + missing + " of this version"})
}

// groupSelector parses a selector of groups. An empty selector is an error, because Cilium's definition literally gives it peers of every kind.
func groupSelector(raw json.RawMessage) (*Selector, error) {
	s, err := ciliumSelector(raw)
	if err != nil {
		return nil, err
	}
	if len(s.Requirements) == 0 {
		return nil, errors.New("the selector is empty: choose groups by a label")
	}
	for i := range s.Requirements {
		q := &s.Requirements[i]
		if q.Source != AnySource {
			return nil, errors.New("the key " + quote(q.Source+":"+q.Key) + " has a source: labels of groups have none")
		}
		q.Source = sourceGroup
	}
	return &s, nil
}
