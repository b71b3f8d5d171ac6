package policy

import (
	"github.com/waggle-net/waggle/pkg/identity"
)

// Question is about the first packet of a connection.
type Question struct {
	Subject   Party     `json:"subject"` // the endpoint whose policy is asked
	Peer      Party     `json:"peer"`    // who is at the other end
	Direction Direction `json:"direction"`
	Protocol  uint8     `json:"protocol"` // an IP protocol
	Port      uint16    `json:"port"`     // of the destination; for ICMP the type of the message
}

// Verdict says whether a connection may be.
type Verdict string

const (
	Allow Verdict = "allow"
	Deny  Verdict = "deny"
)

// Basis says what a [Judgement] rests on.
type Basis string

const (
	ByRule      Basis = "rule"            // those in Decided
	ByDefault   Basis = "default-deny"    // the subject is isolated, and no rule allows
	NotIsolated Basis = "not-isolated"    // no policy says anything against it
	LocalHost   Basis = "allow-localhost" // the local host reaches its endpoints
	NotEnforced Basis = "not-enforced"    // --enable-policy=never
	UnknownPeer Basis = "unknown-peer"    // nothing is known of the peer's address, which may be anybody's
)

// Match is a rule that speaks of the subject, the peer and the port.
type Match struct {
	Policy Ref    `json:"policy"`
	Path   string `json:"path"` // of the rule in the policy
	Deny   bool   `json:"deny,omitempty"`
	Audit  bool   `json:"audit,omitempty"` // the policy is in audit mode
}

// Miss is a rule that would have been a [Match] but for one thing.
type Miss struct {
	Match
	Why string `json:"why"` // what it misses, in words
}

// Judgement is a verdict and what it rests on.
type Judgement struct {
	Verdict  Verdict `json:"verdict"`
	Basis    Basis   `json:"basis"`
	Isolated bool    `json:"isolated"`
	// IsolatedBy are the parts of policies that isolate the subject in the direction; none with [Always] alone.
	IsolatedBy []Match `json:"isolatedBy,omitempty"`
	// Decided are all rules that say the verdict, in the order of the policies. Those that allow are left out when any denies.
	Decided []Match `json:"decided,omitempty"`
	// Nearly are the rules that speak of the peer or of the port, and not of the other. Deny rules are among them.
	Nearly []Miss `json:"nearly,omitempty"`
}

// Answer is what is enforced, and what would be.
type Answer struct {
	Judgement
	// Audited is what would hold if policies in audit mode counted. It equals what is enforced when there are none.
	Audited Judgement `json:"audited"`
}

// Evaluate answers a question. It is the reference: whatever else decides must decide the same.
func Evaluate(policies []*Policy, options Options, q Question) Answer {
	return Answer{
		Judgement: judge(policies, options, &q, false),
		Audited:   judge(policies, options, &q, true),
	}
}

// judge decides, with the policies in audit mode or without them.
func judge(policies []*Policy, options Options, q *Question, audited bool) Judgement {
	switch {
	case options.Mode == Never:
		return Judgement{Verdict: Allow, Basis: NotEnforced}
	case options.AllowLocalhost && q.Direction == Ingress && q.Peer.Identity == identity.Host:
		return Judgement{Verdict: Allow, Basis: LocalHost}
	}
	type selecting struct {
		policy *Policy
		part   *Part
	}
	var parts []selecting
	var required Requirements
	for _, p := range policies {
		if p.Audit && !audited {
			continue
		}
		for i := range p.Parts {
			if part := &p.Parts[i]; part.Subject.Matches(q.Subject.Labels) {
				parts = append(parts, selecting{p, part})
				required.Add(p.Ref, part, q.Direction)
			}
		}
	}
	var t tally
	for _, one := range parts {
		t.add(one.policy, one.part, &required, options, q)
	}
	return t.judgement(options, q.Peer.Identity == identity.Unknown)
}

// tally is what all parts that are for the subject say.
type tally struct {
	isolatedBy, allows, denies []Match
	nearly                     []Miss
	mayDeny                    bool // some rule of the direction denies somebody
}

func (t *tally) add(p *Policy, part *Part, required *Requirements, options Options, q *Question) {
	if part.Isolates(q.Direction) {
		t.isolatedBy = append(t.isolatedBy, Match{Policy: p.Ref, Path: part.Path, Deny: true, Audit: p.Audit})
	}
	for i := range part.Rules {
		if part.Rules[i].Direction != q.Direction {
			continue
		}
		rule := required.Narrow(p.Ref, &part.Rules[i])
		t.mayDeny = t.mayDeny || rule.Deny
		match := Match{Policy: p.Ref, Path: rule.Path, Deny: rule.Deny, Audit: p.Audit}
		switch hit, why := rule.matches(options, q); {
		case hit && rule.Deny:
			t.denies = append(t.denies, match)
		case hit:
			t.allows = append(t.allows, match)
		case why != "":
			t.nearly = append(t.nearly, Miss{match, why})
		}
	}
}

// judgement: any deny denies, else any allow allows, else it depends on whether the subject is isolated. A peer of which nothing
// is known may be anybody: no rule allows it, and any rule that denies somebody may mean it.
func (t *tally) judgement(options Options, unknown bool) Judgement {
	j := Judgement{Isolated: options.Mode == Always || len(t.isolatedBy) > 0, IsolatedBy: t.isolatedBy, Nearly: t.nearly}
	switch {
	case unknown && (j.Isolated || t.mayDeny):
		j.Verdict, j.Basis, j.Nearly = Deny, UnknownPeer, nil
	case unknown:
		j.Verdict, j.Basis = Allow, NotIsolated
	case len(t.denies) > 0:
		j.Verdict, j.Basis, j.Decided = Deny, ByRule, t.denies
	case len(t.allows) > 0:
		j.Verdict, j.Basis, j.Decided = Allow, ByRule, t.allows
	case j.Isolated:
		j.Verdict, j.Basis = Deny, ByDefault
	default:
		j.Verdict, j.Basis = Allow, NotIsolated
	}
	return j
}

// matches tells whether a rule speaks of the question; if only its peers or only its ports do, why says so.
func (r *Rule) matches(options Options, q *Question) (hit bool, why string) {
	server := &q.Subject
	if q.Direction == Egress {
		server = &q.Peer
	}
	peers, ports := r.Peers.Matches(&q.Peer, options), r.Ports.Matches(q.Protocol, q.Port, server.Ports)
	switch {
	case peers && ports:
		return true, ""
	case peers:
		return false, r.Ports.whyNot(q.Protocol, q.Port, server.Ports)
	case ports:
		return false, r.Peers.whyNot(&q.Peer, options)
	}
	return false, ""
}
