package policyexplain

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
)

// Explain reports whether one party may connect to another, and why. Errors are those of [View.Find] and [ParsePort]. Explain also fails if the parties have
// no addresses of the same family, or if the result for a service depends on missing input or on another node.
func (v *View) Explain(from, to, port string, kernel Kernel) (*models.PolicyExplanation, error) {
	number, protocol, err := ParsePort(port)
	if err != nil {
		return nil, err
	}
	source, err := v.Find(from)
	if err != nil {
		return nil, err
	}
	target, err := v.Find(to)
	if err != nil {
		return nil, err
	}
	sourceAddr, targetAddr, err := sameFamily(&source, &target, protocol)
	if err != nil {
		return nil, err
	}
	c := connection{source: &source, target: &target, sourceAddr: sourceAddr, targetAddr: targetAddr, protocol: protocol, port: number}
	e, err := v.throughService(&c, kernel)
	if err != nil {
		return nil, err
	}
	if e == nil {
		e = v.direct(&c, kernel)
	}
	e.Port = port
	return e, nil
}

// connection is the connection to explain.
type connection struct {
	source, target         *Party
	sourceAddr, targetAddr netip.Addr // invalid for a party without an address
	protocol               uint8
	port                   uint16
}

// direct explains a connection that no service translates.
func (v *View) direct(c *connection, kernel Kernel) *models.PolicyExplanation {
	e := v.evaluate(c, kernel)
	if c.sourceAddr.IsValid() && c.targetAddr.IsValid() {
		var err error
		if e.Conntrack, err = kernel.Between(c.sourceAddr, c.targetAddr, c.protocol, c.port); err != nil {
			e.ConntrackError = err.Error()
		}
	}
	return e
}

// evaluate evaluates the policies of both ends, and compares the result with the kernel's maps.
func (v *View) evaluate(c *connection, kernel Kernel) *models.PolicyExplanation {
	e := &models.PolicyExplanation{From: v.model(c.source, c.sourceAddr), To: v.model(c.target, c.targetAddr),
		Port: fmt.Sprintf("%d/%s", c.port, policy.ProtocolName(c.protocol))}
	egress := v.side(c.source, c.target, c.sourceAddr, c.targetAddr, policy.Egress, c.protocol, c.port)
	ingress := v.side(c.target, c.source, c.targetAddr, c.sourceAddr, policy.Ingress, c.protocol, c.port)
	for _, s := range []*side{&egress, &ingress} {
		s.compare(v, kernel)
	}
	e.Egress, e.Ingress = egress.model, ingress.model
	e.Verdict, e.Summary = sum(&egress, &ingress)
	return e
}

var errFamilies = errors.New("the two have no addresses of the same family")

// sameFamily selects the addresses: IPv4 if both parties have it, unless the protocol is ICMPv6.
func sameFamily(a, b *Party, protocol uint8) (x, y netip.Addr, err error) {
	if len(a.Addrs) == 0 || len(b.Addrs) == 0 {
		for _, p := range []*Party{a, b} {
			if len(p.Addrs) > 0 {
				x, y = p.Addrs[0], p.Addrs[0]
			}
		}
		if len(a.Addrs) == 0 {
			x = netip.Addr{}
		}
		if len(b.Addrs) == 0 {
			y = netip.Addr{}
		}
		return x, y, nil
	}
	for _, ipv6 := range []bool{false, true} {
		if ipv6 && protocol == policy.ProtocolICMP || !ipv6 && protocol == policy.ProtocolICMPv6 {
			continue
		}
		x, some := a.addr(ipv6)
		y, other := b.addr(ipv6)
		if some && other {
			return x, y, nil
		}
	}
	return x, y, errFamilies
}

// side is the result of the policy of one end.
type side struct {
	question policy.Question
	result   policy.Result
	reason   string // reason of the verdict, in a sentence
	model    models.PolicySide
	row      *endpointpolicies.EndpointPolicy // nil if the endpoint has none
}

// here reports whether the end's policy was evaluated.
func (s *side) here() bool { return s.model.Here }

func (v *View) side(own, other *Party, ownAddr, otherAddr netip.Addr, d policy.Direction, protocol uint8, port uint16) (s side) {
	if own.Endpoint == nil {
		s.model.Message = "not an endpoint of this node: its policy is enforced where it is, if it is a pod; ask there"
		return s
	}
	s.question = policy.Question{Subject: subject(own), Peer: v.peer(other, otherAddr), Direction: d, Protocol: protocol, Port: port}
	s.question.Subject.Addr = ownAddr
	if ownAddr.IsValid() && ownAddr == otherAddr {
		s.model.Message = "an endpoint connects to itself inside its own network namespace; no policy is evaluated"
		return s
	}
	s.result = policy.Evaluate(v.policies, v.Options, s.question)
	s.row, _ = endpointpolicies.Of(v.txn, v.EndpointPolicies, own.Endpoint.ID, own.Endpoint.AttachmentID())
	s.reason = v.because(&s.result.Evaluation, &s.question)
	s.model = models.PolicySide{
		Here: true, Isolated: s.result.Isolated, Message: s.reason, Verdict: verdict(s.result.Verdict),
		DecidedBy: v.uses(s.result.Decided), Considered: v.considered(&s.question),
		Audit: models.PolicyAudit{Verdict: verdict(s.result.Audited.Verdict), DecidedBy: v.uses(s.result.Audited.Decided)},
	}
	for _, m := range v.nearly(&s.result.Evaluation, &s.question) {
		use := v.use(m.Match)
		use.Text = miss(m)
		s.model.NearMisses = append(s.model.NearMisses, use)
	}
	return s
}

func verdict(v policy.Verdict) models.PolicyVerdict {
	if v == policy.Allow {
		return models.PolicyVerdictAllowed
	}
	return models.PolicyVerdictDenied
}

// sum combines the verdicts of both sides. It ignores sides that this node does not evaluate.
func sum(egress, ingress *side) (models.PolicyVerdict, string) {
	for _, s := range []struct {
		*side
		name string
	}{{egress, "egress of the sender"}, {ingress, "ingress of the receiver"}} {
		if s.here() && s.result.Verdict == policy.Deny {
			return models.PolicyVerdictDenied, "denied in " + s.name + ": " + s.reason
		}
	}
	text := "allowed"
	switch {
	case egress.here() && ingress.here():
		text += ": egress of the sender: " + egress.reason + "; ingress of the receiver: " + ingress.reason
	case egress.here():
		text += " by this node: egress of the sender: " + egress.reason + "; the receiver is not an endpoint of this node"
	case ingress.here():
		text += " by this node: ingress of the receiver: " + ingress.reason + "; the sender is not an endpoint of this node"
	default:
		text += " by this node: no policy of it is asked"
	}
	return models.PolicyVerdictAllowed, text
}

// uses converts rules to the API's type.
func (v *View) uses(matches []policy.Match) []models.PolicyRuleUse {
	var uses []models.PolicyRuleUse
	for _, m := range matches {
		use := v.use(m)
		use.Matches = true
		uses = append(uses, use)
	}
	return uses
}

func (v *View) use(m policy.Match) models.PolicyRuleUse {
	use := models.PolicyRuleUse{Policy: m.Policy.String(), Path: m.Path, Audit: m.Audit, Deny: m.Deny}
	if rule := v.ruleOf(m); rule != nil {
		use.Text = does(rule)
	}
	return use
}

// considered returns all rules for the subject in the direction.
func (v *View) considered(q *policy.Question) []models.PolicyRuleUse {
	var uses []models.PolicyRuleUse
	server := &q.Subject
	if q.Direction == policy.Egress {
		server = &q.Peer
	}
	var required policy.Requirements
	for _, p := range v.policies {
		for i := range p.Parts {
			if p.Parts[i].Subject.Matches(q.Subject.Labels) {
				required.Add(p.Ref, &p.Parts[i], q.Direction)
			}
		}
	}
	for _, p := range v.policies {
		for i := range p.Parts {
			if !p.Parts[i].Subject.Matches(q.Subject.Labels) {
				continue
			}
			for k := range p.Parts[i].Rules {
				rule := required.Narrow(p.Ref, &p.Parts[i].Rules[k])
				if rule.Direction == q.Direction {
					uses = append(uses, models.PolicyRuleUse{Policy: p.Ref.String(), Path: rule.Path, Audit: p.Audit, Deny: rule.Deny,
						Matches: rule.Peers.Matches(&q.Peer, v.Options) && rule.Ports.Matches(q.Protocol, q.Port, server.Ports), Text: does(rule)})
				}
			}
		}
	}
	return uses
}
