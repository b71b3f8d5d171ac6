package policyexplain

import (
	"net/netip"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Packet is the first packet of a connection that the datapath evaluated.
type Packet struct {
	Endpoint  uint16 // endpoint whose policy was evaluated
	Direction policy.Direction
	Protocol  uint8
	Port      uint16     // for ICMP the type
	Own       netip.Addr // address of the endpoint
	Other     netip.Addr // address of the peer
	Peer      uint32     // identity of the peer in the datapath's lookup
}

// Why explains in one sentence why policies deny a packet, or that current policies allow it. The result is empty if the endpoint no longer exists.
func (v *View) Why(p *Packet) string {
	q, found := v.question(p)
	if !found {
		return ""
	}
	evaluation := policy.Evaluate(v.policies, v.Options, q).Evaluation
	if evaluation.Verdict == policy.Allow {
		return "allowed by the policies of now: " + v.because(&evaluation, &q)
	}
	return v.because(&evaluation, &q)
}

// question returns the policy lookup of a packet. An endpoint whose address has changed is a different endpoint.
func (v *View) question(p *Packet) (q policy.Question, found bool) {
	ep, _, found := v.Endpoints.Get(v.txn, endpoints.ByID(p.Endpoint))
	if !found || p.Own != ep.IPv4 && p.Own != ep.IPv6 {
		return q, false
	}
	own, other := v.ofEndpoint(ep), v.ByAddr(p.Other)
	if p.Peer != 0 {
		other.Identity = p.Peer
	}
	return policy.Question{Subject: subject(&own), Peer: v.peer(&other, p.Other), Direction: p.Direction, Protocol: p.Protocol,
		Port: p.Port}, true
}
