package policycompiler

// entry is an [Entry] without its kind and identity.
type entry struct {
	rule     uint32 // cookie
	port     uint16
	protocol uint8
	bits     uint8
	deny     bool
}

// effect is the effect of a rule on one peer.
type effect struct {
	rule  int // index
	deny  bool
	all   bool // all protocols and ports
	ports []span
}

// wide holds the effects of entries of other kinds on a peer. The datapath looks these entries up as well.
type wide struct {
	allowAll, denyAll bool
	allow, deny       map[uint8]runs // by protocol
}

// with returns w with the effects of rules of one more kind.
func (w wide) with(effects []effect) wide {
	out := wide{allowAll: w.allowAll, denyAll: w.denyAll, allow: map[uint8]runs{}, deny: map[uint8]runs{}}
	allows, denies := split(effects)
	out.allowAll = out.allowAll || allows.all >= 0
	out.denyAll = out.denyAll || denies.all >= 0
	add := func(to, from map[uint8]runs, spans []span) {
		for protocol, r := range from {
			to[protocol] = r
		}
		for len(spans) > 0 {
			var these []span
			protocol := spans[0].protocol
			these, spans = ofProtocol(spans, protocol)
			to[protocol] = to[protocol].union(merge(these))
		}
	}
	add(out.allow, w.allow, allows.spans)
	add(out.deny, w.deny, denies.spans)
	return out
}

// side holds all allows or all denies.
type side struct {
	all   int    // a rule for all protocols and ports; -1 when there is none
	spans []span // sorted
}

func split(effects []effect) (allows, denies side) {
	allows.all, denies.all = -1, -1
	for i := range effects {
		s, to := &effects[i], &allows
		if s.deny {
			to = &denies
		}
		if s.all && to.all < 0 {
			to.all = s.rule
		}
		for _, p := range s.ports {
			p.rule = s.rule
			to.spans = append(to.spans, p)
		}
	}
	sortSpans(allows.spans)
	sortSpans(denies.spans)
	return allows, denies
}

// entriesOf returns the entries of one peer: the fewest that, together with the entries of other kinds, give the verdict of the rules. An allow may contain
// ports of a deny. The deny wins, as another class of keys or as the longer of two ranges. An allow is never inside a denied range, where it would be the
// longer range. It returns none when the limit is exceeded.
func entriesOf(effects []effect, w wide, cookies *ruleCookies) []entry {
	if w.denyAll || cookies.exceeded() {
		return nil
	}
	return cookies.count(build(effects, w, cookies.of))
}

// build builds the entries of [entriesOf] for a peer that is not denied completely. cookies holds the cookies of the rules by index.
func build(effects []effect, w wide, cookies []uint32) (out []entry) {
	allows, denies := split(effects)
	if denies.all >= 0 {
		return []entry{{rule: cookies[denies.all], deny: true}}
	}
	allowed := w.allowAll || allows.all >= 0
	if allows.all >= 0 && !w.allowAll {
		out = append(out, entry{rule: cookies[allows.all]})
	}
	if allowed {
		allows.spans = nil
	}
	for len(allows.spans)+len(denies.spans) > 0 {
		protocol := lowest(allows.spans, denies.spans)
		var allow, deny []span
		allow, allows.spans = ofProtocol(allows.spans, protocol)
		deny, denies.spans = ofProtocol(denies.spans, protocol)
		denied := merge(deny)
		out = cover(out, denied.minus(w.deny[protocol]), deny, cookies, true)
		out = cover(out, merge(allow).minus(denied).minus(w.deny[protocol]).minus(w.allow[protocol]), allow, cookies, false)
	}
	return out
}

func lowest(a, b []span) uint8 {
	switch {
	case len(a) == 0:
		return b[0].protocol
	case len(b) == 0:
		return a[0].protocol
	}
	return min(a[0].protocol, b[0].protocol)
}
