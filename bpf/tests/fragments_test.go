package tests

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// part is a fragment of a UDP datagram with the ports of f; the first has offset 0.
func (f flow) part(t *testing.T, id uint16, at int, more bool) []byte {
	t.Helper()
	payload := gopacket.Payload(make([]byte, 24))
	if at == 0 {
		binary.BigEndian.PutUint16(payload, f.sport)
		binary.BigEndian.PutUint16(payload[2:], f.dport)
		binary.BigEndian.PutUint16(payload[4:], 4000)
	}
	if f.src.Is4() {
		f.proto, f.fragmentAt, f.fragmentMore = layers.IPProtocolUDP, uint16(at), more
		_, network, ip := f.network()
		network.(*layers.IPv4).Id = id
		return serialize(t, ether(f.from, f.to, layers.EthernetTypeIPv4), ip, payload)
	}
	header := []byte{44, 0, byte(at >> 5), byte(at << 3), 0, 0, byte(id >> 8), byte(id)}
	if more {
		header[3] |= 1
	}
	return chain(t, f, layers.IPProtocolUDP, payload, header)
}

func TestPrivilegedFragments(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.ingress(podB, rule{level: bpf.PolicyPort, protocol: protoUDP, first: 53})
		n.closed(podA)
		ask := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 53)

		// A later fragment before the first one, and a fragment of a datagram whose first fragment was dropped.
		n.wantEgressDrop(podA, ask.part(t, 1, 10, true), events.UnknownFragment)
		n.wantEgressDrop(podA, ask.ports(5000, 54).part(t, 1, 0, true), events.PolicyDenied)
		n.wantEgressDrop(podA, ask.part(t, 1, 10, true), events.UnknownFragment)
		n.wantFlows(family, 0, 0)

		// The first fragment, then the others in any order.
		n.passes(podA, ask.part(t, 1, 0, true), actRedirect)
		n.passes(podA, ask.part(t, 1, 20, false), actRedirect)
		n.passes(podA, ask.part(t, 1, 10, true), actRedirect)
		n.wantFlows(family, 1, 0)
		if f := n.onlyFlow("new", family); f.Packets != 3 {
			t.Errorf("flow %+v", f)
		}

		// Fragments of another datagram, of another pod, or in the reverse direction do not match.
		n.wantEgressDrop(podA, ask.part(t, 2, 10, true), events.UnknownFragment)
		n.wantEgressDrop(podB, ask.back(podB).part(t, 1, 10, true), events.UnknownFragment)

		// Replies can be fragmented too.
		n.passes(podB, ask.back(podB).part(t, 1, 0, true), actRedirect)
		n.passes(podB, ask.back(podB).part(t, 1, 10, false), actRedirect)
		n.wantFlows(family, 1, 0)
		n.passes(podA, ask.part(t, 1, 20, false), actRedirect)
		n.wantFlows(family, 0, 1)

		// The verdict of the flow applies to fragments: it is denied now.
		n.policy(policyID)
		n.facts(podB, func(*bpf.EndpointFacts) {})
		n.wantEgressDrop(podA, ask.part(t, 1, 30, false), events.PolicyDenied)
		n.wantEgressDrop(podA, ask.part(t, 3, 0, true), events.PolicyDenied)
	})
}

// A pod that sends many first fragments evicts no entry of another pod, and its own last ones are known.
func TestPrivilegedFragments_FloodOfOnePod(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.ingress(podA, rule{level: bpf.PolicyPort, protocol: protoUDP, first: 53})
		n.ingress(podB, rule{level: bpf.PolicyPort, protocol: protoUDP, first: 53})
		quiet := sent(podB, podB.addr(family), podA.addr(family)).ports(5000, 53)
		noisy := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 53)
		n.passes(podB, quiet.part(t, 1, 0, true), actRedirect)
		last := uint16(3 * n.maps[bpf.MapFrags].MaxEntries())
		for id := range last + 1 {
			n.passes(podA, noisy.part(t, id, 0, true), actRedirect)
		}
		n.passes(podB, quiet.part(t, 1, 10, false), actRedirect)
		n.passes(podA, noisy.part(t, last, 10, false), actRedirect)
	})
}

// Packets from the stack to a pod may be fragmented too, and the fragments of one pod do not match for another.
func TestPrivilegedFragments_FromTheStack(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.ingress(podA, rule{level: bpf.PolicyPort, protocol: protoUDP, first: 53})
		in := outsideTo(podA, outside[family], 5000, 53)
		n.wantIngressDrop(podA, ifUplink, in.part(t, 1, 10, true), events.UnknownFragment)
		n.arrives(podA, ifUplink, in.part(t, 1, 0, true))
		n.arrives(podA, ifUplink, in.part(t, 1, 10, false))

		moved := outsideTo(podA, podB.addr(family), 5000, 53)
		n.passes(podB, sent(podB, podB.addr(family), podA.addr(family)).ports(5000, 53).part(t, 9, 0, true), actRedirect)
		n.wantIngressDrop(podA, ifUplink, moved.part(t, 9, 10, true), events.UnknownFragment)
	})
}

// A first fragment without the whole TCP header could carry flags that are not evaluated.
func TestPrivilegedFragments_Tiny(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tiny := sent(podA, podA.ipv4, podB.ipv4)
	tiny.proto, tiny.fragmentMore, tiny.payload = layers.IPProtocolTCP, true, make([]byte, 8)
	n.wantEgressDrop(podA, tiny.bytes(t), events.Truncated)
	n.wantEgressDrop(podA, chain(t, sent(podA, podA.ipv6, podB.ipv6), layers.IPProtocolTCP, make([]byte, 8), fragment(1)), events.Truncated)
}
