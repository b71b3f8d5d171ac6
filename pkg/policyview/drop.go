package policyview

import (
	"net/netip"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Packet is the first packet of a connection that a policy was asked about.
type Packet struct {
	Endpoint  uint16 // whose policy it is
	Direction policy.Direction
	Protocol  uint8
	Port      uint16     // of ICMP the type
	Own       netip.Addr // address of the endpoint
	Other     netip.Addr // of its peer
	Peer      uint32     // identity that the datapath took the peer for
}

// Why says in a sentence why policies refuse a packet, or that they do not any more. It is empty when the endpoint is gone.
func (v *View) Why(p *Packet) string {
	q, found := v.question(p)
	if !found {
		return ""
	}
	judgement := policy.Evaluate(v.policies, v.Options, q).Judgement
	if judgement.Verdict == policy.Allow {
		return "allowed by the policies of now: " + v.because(&judgement, &q)
	}
	return v.because(&judgement, &q)
}

// question is what a packet asks. An endpoint that has another address now is another one.
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
