package policycompiler

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// work collects the rules of a rule set that apply to each peer.
type work struct {
	peers  map[peer]*peerEffects
	nested bool
}

// peerEffects holds the rules that apply to one peer: rules by index, and rules with resolved named ports.
type peerEffects struct {
	rules []int
	more  []effect
	stop  *rule // rule that excepts the CIDR, or nil
}

func (w *work) of(p peer) *peerEffects {
	s := w.peers[p]
	if s == nil {
		s = &peerEffects{}
		w.peers[p] = s
	}
	return s
}

func (w *work) add(p peer, rule int) {
	if s := w.of(p); len(s.rules) == 0 || s.rules[len(s.rules)-1] != rule {
		s.rules = append(s.rules, rule)
	}
}

// all compiles the entries of all peers, unless the rules exceed a limit.
func (set *ruleset) all(r *Resolver, exceeded string) *Compiled {
	if r.options.Mode == policy.Never || !set.isolated && !slices.ContainsFunc(set.rules, func(r *rule) bool { return r.Deny }) {
		return r.allowAll
	}
	if set.missing = nil; exceeded != "" {
		return &Compiled{isolated: set.isolated, localhost: set.localhost, nested: r.nested, rules: set.rules, tooLarge: true, exceeded: exceeded}
	}
	w := &work{peers: map[peer]*peerEffects{}, nested: r.nested}
	anyPeer := slices.Clone(set.anyPeer)
	var known []cidrUse
	for _, use := range set.cidrs {
		switch {
		case !set.anyMissing(r, use.cidrPeer):
			known = append(known, use)
		case set.rules[use.rule].Deny:
			anyPeer = append(anyPeer, use.rule)
		}
	}
	if r.nested {
		set.gatherNested(r, w, known)
	} else {
		set.gatherFlat(r, w, known)
	}
	for i := range set.rules {
		for _, s := range set.rules[i].selectors {
			for _, number := range s.identities {
				w.add(peer{Identity, number}, i)
			}
			for _, number := range s.classes {
				w.add(peer{Class, number}, i)
			}
		}
	}
	if set.peersNamed {
		set.gatherServed(r, w)
	}
	return set.finish(w, anyPeer)
}

// gatherFlat adds each rule about a CIDR to all named CIDRs inside it.
func (set *ruleset) gatherFlat(r *Resolver, w *work, uses []cidrUse) {
	for _, use := range uses {
		for _, n := range r.cidrs.within(use.prefix) {
			if use.includes(n.prefix) {
				w.add(peer{use.kind(), n.identity}, use.rule)
			}
		}
	}
}

// gatherNested adds each rule about a CIDR to this CIDR. An excepted CIDR stops the entries about the CIDRs around it, so it gets the rules about them as well,
// except the rules that except it.
func (set *ruleset) gatherNested(r *Resolver, w *work, uses []cidrUse) {
	stops := newNamedCIDRs()
	for _, use := range uses {
		w.add(peer{use.kind(), r.cidrs.number[use.prefix]}, use.rule)
		for _, except := range use.except {
			number := r.cidrs.number[except]
			w.of(peer{CIDR, number}).stop = set.rules[use.rule]
			stops.number[except] = number
		}
	}
	if len(stops.number) == 0 {
		return
	}
	stops.sortAll()
	for _, use := range uses {
		for _, n := range stops.within(use.prefix) {
			if n.prefix != use.prefix && use.includes(n.prefix) {
				w.add(peer{use.kind(), n.identity}, use.rule)
			}
		}
	}
}

// anyMissing reports whether a prefix of a choice has no identity yet, and adds such prefixes to set.missing.
func (set *ruleset) anyMissing(r *Resolver, c *cidrPeer) (any bool) {
	for _, prefix := range append([]netip.Prefix{c.prefix}, c.except...) {
		if r.cidrs.number[prefix] == 0 {
			set.missing = append(set.missing, prefix)
			any = true
		}
	}
	return any
}

// gatherServed adds the resolved named ports of peers. While the address of a pod has no identity, allow rules do not apply to the pod, and deny rules apply to
// all pods with its identity.
func (set *ruleset) gatherServed(r *Resolver, w *work) {
	for i, rule := range set.rules {
		r.servedTo(rule, func(s servedPort) {
			one := effect{rule: i, deny: rule.Deny, ports: s.ports}
			if s.pod == nil {
				to := w.of(peer{Identity, s.identity})
				to.more = append(to.more, one)
				return
			}
			for _, address := range s.pod.Addresses {
				to := peer{s.kind, r.cidrs.number[full(address)]}
				if to.identity == 0 {
					set.missing = append(set.missing, full(address))
					if !rule.Deny {
						continue
					}
					to = peer{Identity, s.identity}
				}
				of := w.of(to)
				of.more = append(of.more, one)
			}
		})
	}
}

// finish builds the entries of all peers.
func (set *ruleset) finish(w *work, anyPeer []int) *Compiled {
	slices.SortFunc(set.missing, netip.Prefix.Compare)
	set.missing = slices.Compact(set.missing)
	c := &Compiled{isolated: set.isolated, localhost: set.localhost, nested: w.nested, rules: set.rules, missing: set.missing}
	effects := set.effectsOf(&peerEffects{rules: anyPeer})
	if !set.isolated {
		effects = append(effects, effect{rule: len(set.rules), all: true})
	}
	set.wide = wide{}.with(effects)
	add := func(p peer, entries []entry) {
		if len(entries) > 0 {
			g := newGroup(p, entries)
			c.groups = append(c.groups, g)
			c.count(g, 1)
		}
	}
	add(peer{Any, 0}, entriesOf(effects, wide{}, set.cookies))
	for p := range w.peers {
		add(p, set.entries(w, p))
	}
	slices.SortFunc(c.groups, func(a, b *group) int { return a.compare(b.peer) })
	return c
}

// entries builds the entries of one peer.
func (set *ruleset) entries(w *work, p peer) []entry {
	of := w.peers[p]
	if of == nil || set.cookies.exceeded() {
		return nil
	}
	others := set.wide
	if p.kind == CIDROutside {
		if inside := w.peers[peer{CIDR, p.identity}]; inside != nil {
			others = others.with(set.effectsOf(inside))
		}
	}
	entries := entriesOf(set.effectsOf(of), others, set.cookies)
	if of.stop != nil {
		entries = append(entries, entry{rule: of.stop.cookie, protocol: Stop, deny: true})
	}
	return entries
}

func (set *ruleset) effectsOf(s *peerEffects) []effect {
	out := make([]effect, 0, len(s.rules)+len(s.more))
	slices.Sort(s.rules)
	for _, i := range slices.Compact(s.rules) {
		out = append(out, set.effects[i])
	}
	return append(out, s.more...)
}

// patch compiles the touched peers again. All other entries stay the same, including the entries about every peer.
func (set *ruleset) patch(r *Resolver) *Compiled {
	if set.compiled.allowsAll {
		return set.compiled
	}
	w := &work{peers: map[peer]*peerEffects{}, nested: r.nested}
	for p := range set.touched {
		if p.kind == CIDR {
			set.gatherCIDR(r, w, p.identity)
		} else {
			set.gatherChosen(r, w, p)
		}
	}
	out := *set.compiled
	out.groups, out.rules = slices.Clone(out.groups), set.rules // set.compiled may have the rules of a previous version of a policy
	changed := false
	for p := range set.touched {
		changed = out.put(p, set.entries(w, p)) || changed
		if outside := (peer{CIDROutside, p.identity}); p.kind == CIDR {
			changed = out.put(outside, set.entries(w, outside)) || changed
		}
	}
	if !changed {
		return set.compiled
	}
	return &out
}

// gatherChosen adds the rules that select an identity or a class.
func (set *ruleset) gatherChosen(r *Resolver, w *work, p peer) {
	for _, s := range r.selectors.of(p) {
		for _, i := range set.bySelector[s] {
			w.add(p, i)
		}
	}
}

func (set *ruleset) gatherCIDR(r *Resolver, w *work, number uint32) {
	prefix, named := r.cidrs.prefixOf[number]
	if !named {
		return
	}
	for _, use := range set.cidrs {
		if use.includes(prefix) {
			w.add(peer{use.kind(), number}, use.rule)
		}
	}
}
