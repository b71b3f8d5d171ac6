package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// CIDRGroups are CiliumCIDRGroups by name.
type CIDRGroups map[string]*cilium.CIDRGroup

// GroupChoice refers to one CiliumCIDRGroup by its name, or to all that have some labels.
type GroupChoice struct {
	Name   string    `json:"name,omitempty"`
	Labels *Selector `json:"labels,omitempty"` // nil when the choice is by name; sources are [sourceGroup]
}

// sourceGroup is the source of labels of CiliumCIDRGroups in selectors.
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

// RefersTo reports whether the policy means other CIDRs when the group changes. A group that changes its labels is two groups here: as it was and as it is.
func (p *Policy) RefersTo(g *cilium.CIDRGroup) bool {
	return slices.ContainsFunc(p.Groups, func(c GroupChoice) bool { return c.includes(g) })
}

// cidrSet reads CIDRs with exceptions: one that the policy names, or those of groups.
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
	if r.env.GroupsUnread {
		r.policy.Groups = append(r.policy.Groups, choice)
		r.unread(path)
		return nil, errReported
	}
	blocks := r.group(path, choice)
	return without(blocks, r.excepts(path, set.Except, netip.Prefix{})), nil
}

// excepts reads exceptions, which must lie in a block if it is valid.
func (r *ciliumRule) excepts(path string, texts []string, block netip.Prefix) (list []netip.Prefix) {
	for i, text := range texts {
		except, err := parseCIDR(text)
		if err == nil && block.IsValid() && (!block.Contains(except.Addr()) || except.Bits() < block.Bits()) {
			err = errors.New(quote(text) + " does not lie in " + block.String())
		}
		if err != nil {
			r.invalid(fmt.Sprintf("%s.except[%d]", path, i), short(err)) // what is denied is not narrowed by it
			continue
		}
		list = append(list, except)
	}
	return list
}

// without returns peers for all addresses of some blocks that no exception contains.
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

// group returns the CIDRs of the chosen groups, in order and each once. What does not exist has none, in rules that deny as well: that is reported.
func (r *ciliumRule) group(path string, choice GroupChoice) (blocks []netip.Prefix) {
	r.policy.Groups = append(r.policy.Groups, choice)
	var chosen []*cilium.CIDRGroup
	if choice.Labels == nil {
		path += ".cidrGroupRef"
		if g := r.env.CIDRGroups[choice.Name]; g != nil {
			chosen = append(chosen, g)
		} else {
			r.absent(path, "there is no CiliumCIDRGroup "+quote(choice.Name))
		}
	} else {
		path += ".cidrGroupSelector"
		for _, name := range slices.Sorted(maps.Keys(r.env.CIDRGroups)) {
			if g := r.env.CIDRGroups[name]; choice.includes(g) {
				chosen = append(chosen, g)
			}
		}
		if len(chosen) == 0 {
			r.absent(path, "no CiliumCIDRGroup has these labels")
		}
	}
	for _, g := range chosen {
		if len(g.Problems) > 0 {
			r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonInvalid, Invalid: true, Message: "entries of the CiliumCIDRGroup " + quote(g.Name) +
				" cannot be read and match nothing (" + quote(g.Problems[0]) + "); correct them"})
		}
		blocks = append(blocks, g.CIDRs...)
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return slices.Compact(blocks)
}

// absent reports something that does not exist and to which the rule refers. It matches no peer until it exists; the other peers of the rule count.
func (r *ciliumRule) absent(path, what string) {
	does := "this peer of the rule allows nothing"
	if r.deny {
		does = "this peer of the rule denies nothing"
	}
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonAbsent, Message: what + ": " + does + " until there is one; create it or correct the policy"})
}

// unread reports that nobody knows what groups hold: what exists could be denied.
func (r *ciliumRule) unread(path string) {
	r.closed = true
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonAbsent, Message: "CiliumCIDRGroups cannot be read: " + outcome(r.deny) +
		" until they can; install the definitions and permissions of this version"})
}

// groupSelector reads labels of groups. One that is empty is an error: by the letter it would mean peers of every kind in Cilium.
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
