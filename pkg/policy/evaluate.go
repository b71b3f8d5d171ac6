package policy

import (
	"github.com/waggle-net/waggle/pkg/identity"
)

// Question is a policy lookup for the first packet of a connection.
type Question struct {
	Subject   Party     `json:"subject"` // the endpoint whose policy is evaluated
	Peer      Party     `json:"peer"`    // the other end
	Direction Direction `json:"direction"`
	Protocol  uint8     `json:"protocol"` // IP protocol number
	Port      uint16    `json:"port"`     // destination port; for ICMP the type of the message
}

// Verdict is the result of a policy lookup.
type Verdict string

const (
	Allow Verdict = "allow"
	Deny  Verdict = "deny"
)

// Basis is the reason for the verdict of a [Evaluation].
type Basis string

const (
	ByRule      Basis = "rule"            // the rules in Decided
	ByDefault   Basis = "default-deny"    // the subject is isolated, and no rule allows the connection
	NotIsolated Basis = "not-isolated"    // the subject is not isolated, and no rule decides
	LocalHost   Basis = "allow-localhost" // the local host reaches its endpoints: [Options.AllowLocalhost]
	NotEnforced Basis = "not-enforced"    // --enable-policy=never
	UnknownPeer Basis = "unknown-peer"    // the peer's address has no known identity and may belong to any peer
)

// Match is a rule that matches the subject, the peer and the port, or a part that isolates the subject.
type Match struct {
	Policy Ref    `json:"policy"`
	Path   string `json:"path"` // location in the policy object
	Deny   bool   `json:"deny,omitempty"`
	Audit  bool   `json:"audit,omitempty"` // the policy is in audit mode
}

// Miss is a rule that matches either the peer or the port, but not both.
type Miss struct {
	Match
	Why string `json:"why"` // the condition that fails, as text
}

// Evaluation is a verdict with its reasons.
type Evaluation struct {
	Verdict  Verdict `json:"verdict"`
	Basis    Basis   `json:"basis"`
	Isolated bool    `json:"isolated"`
	// IsolatedBy are the parts of policies that isolate the subject in the direction. The list is empty if only [Always] isolates it.
	IsolatedBy []Match `json:"isolatedBy,omitempty"`
	// Decided are all rules with the verdict, in the order of the policies. Allow rules are omitted if any rule denies.
	Decided []Match `json:"decided,omitempty"`
	// Nearly are the nearest misses: rules that match either the peer or the port. Deny rules are included.
	Nearly []Miss `json:"nearly,omitempty"`
}

// Result contains the enforced verdict and the verdict with policies in audit mode.
type Result struct {
	Evaluation
	// Audited is the verdict if policies in audit mode were enforced. It equals the enforced verdict if no policy is in audit mode.
	Audited Evaluation `json:"audited"`
}

// Evaluate computes the verdict of a policy lookup. It is the reference: every other implementation must return the same verdict.
func Evaluate(policies []*Policy, options Options, q Question) Result {
	return Result{
		Evaluation: evaluate(policies, options, &q, false),
		Audited:    evaluate(policies, options, &q, true),
	}
}

// evaluate evaluates the policies; audited includes policies in audit mode.
func evaluate(policies []*Policy, options Options, q *Question, audited bool) Evaluation {
	switch {
	case options.Mode == Never:
		return Evaluation{Verdict: Allow, Basis: NotEnforced}
	case options.AllowLocalhost && q.Direction == Ingress && q.Peer.Identity == identity.Host:
		return Evaluation{Verdict: Allow, Basis: LocalHost}
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
	return t.decide(options, q.Peer.Identity == identity.Unknown)
}

// tally collects the rules of all parts that select the subject.
type tally struct {
	isolatedBy, allows, denies []Match
	nearly                     []Miss
	mayDeny                    bool // the direction has a deny rule
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

// decide combines the rules: any deny denies, else any allow allows, else the isolation of the subject decides. A peer with an unknown identity may be
// any peer: no rule allows it, and every deny rule may apply to it.
func (t *tally) decide(options Options, unknown bool) Evaluation {
	j := Evaluation{Isolated: options.Mode == Always || len(t.isolatedBy) > 0, IsolatedBy: t.isolatedBy, Nearly: t.nearly}
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

// matches reports whether a rule matches the lookup. If only its peers or only its ports match, why is the reason.
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
