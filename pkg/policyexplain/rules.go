package policyexplain

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
)

const (
	maxPeers    = 160 // bytes of text for a rule's peers
	maxPorts    = 80
	maxSentence = 500 // bytes of a sentence about one packet
	maxNearly   = 3   // nearest misses in a sentence
)

// ruleOf finds the rule that a match names.
func (v *View) ruleOf(m policy.Match) *policy.Rule {
	if v.rules == nil {
		v.rules = map[ruleName]*policy.Rule{}
		for _, p := range v.policies {
			for i := range p.Parts {
				for k := range p.Parts[i].Rules {
					rule := &p.Parts[i].Rules[k]
					v.rules[ruleName{p.Ref, rule.Path}] = rule
				}
			}
		}
	}
	return v.rules[ruleName{m.Policy, m.Path}]
}

// ruleName identifies a rule.
type ruleName struct {
	policy policy.Ref
	path   string
}

// name returns the name of a rule: "NetworkPolicy shop/web spec.ingress[0]".
func name(m policy.Match) string { return m.Policy.String() + " " + m.Path }

// does describes the effect of a rule with its peers and ports.
func does(rule *policy.Rule) string {
	verb := "allows "
	if rule.Deny {
		verb = "denies "
	}
	side := " to "
	if rule.Direction == policy.Ingress {
		side = " from "
	}
	return verb + portsText(&rule.Ports) + side + peersText(&rule.Peers)
}

// peersText describes the peers of a rule.
func peersText(p *policy.Peers) string {
	if p.Any {
		return "all peers"
	}
	return list(len(p.List), "no peer", maxPeers, func(i int) string { return peerText(&p.List[i]) })
}

func peerText(p *policy.Peer) string {
	switch {
	case p.Labels != nil:
		return selectorText(p.Labels)
	case p.CIDR.IsValid():
		text := p.CIDR.String()
		if len(p.Except) > 0 {
			text += " except " + list(len(p.Except), "", maxPeers, func(i int) string { return p.Except[i].String() })
		}
		return text
	}
	return list(len(p.Identities), "no peer", maxPeers, func(i int) string { return identityText(p.Identities[i]) })
}

func identityText(id uint32) string {
	return cmp.Or(identity.Name(id), "identity "+strconv.FormatUint(uint64(id), 10))
}

// selectorText describes a selector.
func selectorText(s *policy.Selector) string {
	return list(len(s.Requirements), "every identity", maxPeers, func(i int) string { return s.Requirements[i].String() })
}

// portsText describes the ports of a rule.
func portsText(p *policy.Ports) string {
	if p.Any {
		return "all ports"
	}
	return list(len(p.List), "no port", maxPorts, func(i int) string { return p.List[i].String() })
}

// list joins texts and truncates the result. Text from objects is made printable.
func list(n int, none string, limit int, text func(int) string) string {
	if n == 0 {
		return none
	}
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > limit {
			b.WriteString("and " + strconv.Itoa(n-i) + " more")
			break
		}
		b.WriteString(printable.Short(text(i), limit))
	}
	return b.String()
}

// miss describes a nearest miss in one sentence.
func miss(m policy.Miss) string { return name(m.Match) + " nearly allows it: " + m.Why }

// nearly returns the nearest misses of a denied connection: first the rules that match the peer, then the rules that match the port.
func (v *View) nearly(j *policy.Evaluation, q *policy.Question) []policy.Miss {
	if j.Verdict != policy.Deny {
		return nil
	}
	var peers, ports []policy.Miss // misses that match the peer, and misses that match the port
	for _, m := range j.Nearly {
		switch rule := v.ruleOf(m.Match); {
		case m.Deny || rule == nil:
		case rule.Peers.Matches(&q.Peer, v.Options):
			peers = append(peers, m)
		default:
			ports = append(ports, m)
		}
	}
	return append(peers, ports...)
}

// because explains in one sentence why a connection is allowed or denied.
func (v *View) because(j *policy.Evaluation, q *policy.Question) string {
	var text string
	switch j.Basis {
	case policy.ByRule:
		verb := " allows it"
		if j.Verdict == policy.Deny {
			verb = " denies it"
		}
		text = list(len(j.Decided), "", maxSentence, func(i int) string { return name(j.Decided[i]) }) + verb
	case policy.ByDefault:
		isolation := "the mode of policies (always)"
		if len(j.IsolatedBy) > 0 {
			isolation = name(j.IsolatedBy[0])
		}
		text = "isolated by " + isolation + ", and no rule allows it" + v.notEnforced(j, q.Direction)
		misses := v.nearly(j, q)
		for i := range misses[:min(len(misses), maxNearly)] {
			text += "; " + miss(misses[i])
		}
	case policy.NotIsolated:
		text = "no policy isolates it"
	case policy.LocalHost:
		text = "the local host reaches its endpoints (--allow-localhost)"
	case policy.NotEnforced:
		text = "policies are not enforced (--enable-policy=never)"
	case policy.UnknownPeer:
		text = "nothing is known of the address of its peer"
	default:
		text = string(j.Basis)
	}
	return printable.Short(text, maxSentence)
}

// notEnforced lists the parts of the isolating policies that are not enforced; they may be the reason why no rule allows the connection.
func (v *View) notEnforced(j *policy.Evaluation, d policy.Direction) string {
	isolating := map[policy.Ref]bool{}
	for _, m := range j.IsolatedBy {
		isolating[m.Policy] = true
	}
	other := policy.Ingress
	if d == policy.Ingress {
		other = policy.Egress
	}
	var places []string
	for _, p := range v.policies {
		if !isolating[p.Ref] {
			continue
		}
		for _, problem := range p.Problems {
			if !strings.Contains(problem.Path, "."+other.String()) {
				places = append(places, p.Ref.String()+" "+problem.Path)
			}
		}
	}
	if len(places) == 0 {
		return ""
	}
	return "; not enforced: " + list(len(places), "", maxPeers, func(i int) string { return places[i] }) + " (waggle policy list)"
}

// cookie returns the name of the rule from which an entry of a compiled policy was generated.
func (v *View) cookie(id, cookie uint32) string {
	row, _, found := v.Entries.Get(v.txn, policyentries.ByID(id))
	if !found || row.Compiled == nil {
		return ""
	}
	rule, found := row.Compiled.Rule(cookie)
	switch {
	case !found:
		return ""
	case rule.Policy.Name == "":
		return " (" + rule.Path + ")"
	}
	return " (" + printable.Text(rule.Policy.String()) + " " + rule.Path + ")"
}
