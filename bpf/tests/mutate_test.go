package tests

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// For any packet of a pod: forwarded packets have its own addresses as sources, and delivered packets have the addresses of their receiver. Packets of every
// kind are changed at random; most are dropped, which is acceptable.
func TestPrivilegedPodEgress_MutatedPackets(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	random := testseed.New(t)
	f6 := sent(podA, podA.ipv6, podB.ipv6)
	seeds := [][]byte{
		sent(podA, podA.ipv4, podB.ipv4).bytes(t), sent(podA, podA.ipv4, outside[4]).bytes(t), f6.bytes(t),
		sent(podA, podA.ipv6, outside[6]).bytes(t),
		arp(t, podA.mac, broadcast, arpRequest, podA.mac, podA.ipv4, mac.Addr{}, gateway4),
		solicitation(podA, podA.ipv6, solicitedNode(gateway6), gateway6).bytes(t),
		solicitation(podA, linkLocal, gateway6, gateway6).bytes(t),
		chain(t, f6, layers.IPProtocolICMPv6, icmpBytes(128), hopByHop(), routing(), auth(), destOptions(1)),
	}
	passed := 0
	for range 20_000 {
		in := mutate(random, seeds[random.IntN(len(seeds))])
		got := n.run(bpf.PodEgress, ifPodA, in)
		if got.action == actShot {
			continue
		}
		passed++
		if fault := faultOf(in, got); fault != "" {
			t.Fatalf("%s: action %d\n in %x\nout %x", fault, got.action, in, got.packet)
		}
	}
	if passed < 500 {
		t.Errorf("only %d packets went on: the test sees too little", passed)
	}
}

// mutate changes up to three bytes of a copy and sometimes truncates it. PROG_TEST_RUN requires a whole IP header.
func mutate(random *rand.Rand, packet []byte) []byte {
	c := bytes.Clone(packet)
	for range random.IntN(4) {
		c[random.IntN(len(c))] = byte(random.Uint32())
	}
	if least := offIP + 40; random.IntN(8) == 0 && len(c) > least {
		c = c[:least+random.IntN(len(c)-least)]
	}
	return c
}

// faultOf describes the fault of a forwarded packet; "" when there is none.
func faultOf(in []byte, got outcome) string {
	if mac.Addr(in[6:12]) != podA.mac {
		return "sent by another MAC"
	}
	var own bool
	var target netip.Addr
	switch proto := binary.BigEndian.Uint16(in[offEtherType:]); proto {
	case 0x0806:
		return replyFault(got)
	case 0x0800:
		own = netip.AddrFrom4([4]byte(in[26:30])) == podA.ipv4
		target = netip.AddrFrom4([4]byte(in[30:34]))
	case 0x86dd:
		if in[offIP+6] == byte(layers.IPProtocolICMPv6) && in[offIP+40] == layers.ICMPv6TypeNeighborSolicitation {
			return replyFault(got)
		}
		own = netip.AddrFrom16([16]byte(in[22:38])) == podA.ipv6
		target = netip.AddrFrom16([16]byte(in[38:54]))
	default:
		return "of an unsupported protocol"
	}
	switch {
	case !own:
		return "with another's source address"
	case mac.Addr(in[:6]) != podA.host:
		return "to another MAC"
	case target.IsMulticast():
		return "to a group"
	case got.action == actOK && got.mark != 0x34100f12:
		return "passed up without its mark"
	case got.action == actRedirect && !addressed(got.packet, podA, target) && !addressed(got.packet, podB, target):
		return "delivered to the wrong pod"
	}
	return ""
}

// addressed reports whether a packet is addressed to a pod that has the destination address.
func addressed(packet []byte, to pod, target netip.Addr) bool {
	return mac.Addr(packet[:6]) == to.mac && mac.Addr(packet[6:12]) == to.host && (target == to.ipv4 || target == to.ipv6)
}

// replyFault checks a reply of the gateway.
func replyFault(got outcome) string {
	if got.action != actRedirect || mac.Addr(got.packet[:6]) != podA.mac || mac.Addr(got.packet[6:12]) != podA.host {
		return "a question that went on, or an answer that went astray"
	}
	return ""
}
