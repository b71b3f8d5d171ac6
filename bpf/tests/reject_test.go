package tests

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// newRejecting is a node with a service without backends, which rejects each connection with a reset and each datagram with an ICMP error.
func newRejecting(t *testing.T, family int, rate uint32) (n *node, service netip.AddrPort) {
	t.Helper()
	n = newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableRejectRate: rate}, nil)
	n.surround()
	service = on(balancer[family], 80)
	n.serve(40, service, loadbalancer.TCP, int(bpf.ServiceLocalOnly)) // no other node has backends: ServiceDrop is not set
	n.serve(41, service, loadbalancer.UDP, 0)
	return n, service
}

// rejected are packets that a node rejects: with a reset, and with an ICMP error.
var rejected = map[string]func(t testing.TB, f flow) []byte{
	"SYN":      func(t testing.TB, f flow) []byte { return f.tcp(t, "S") },
	"datagram": func(t testing.TB, f flow) []byte { return f.bytes(t) },
}

// However many rejected packets arrive, the node sends a bounded number of resets and errors: to outside senders, and to each pod.
func TestPrivilegedReject_IsLimited(t *testing.T) {
	t.Parallel()
	const rate, packets = 16, 400
	for _, family := range families {
		n, service := newRejecting(t, family, rate)
		sends := map[string]func(port uint16) outcome{}
		for kind, packet := range rejected {
			sends[kind+"s from outside"] = func(port uint16) outcome {
				return n.run(bpf.NetdevIngress, ifUplink, packet(t, coming(on(client[family], port), service)))
			}
			sends[kind+"s from a pod"] = func(port uint16) outcome {
				return n.run(bpf.PodEgress, ifPodA, packet(t, sent(podA, podA.addr(family), service.Addr()).ports(port, service.Port())))
			}
		}
		for name, send := range sends {
			nextTick(t) // another kind of packets from this sender has used up the rate
			before, began, answered := n.count(events.NoBackend, bpf.DirectionIngress).Packets+n.count(events.NoBackend, bpf.DirectionEgress).Packets, now(t), 0
			for i := range uint16(packets) {
				if got := send(1000 + i); got.action == actRedirect {
					answered++
				} else if got.action != actShot {
					t.Fatalf("IPv%d %s: action %d", family, name, int32(got.action))
				}
			}
			if ticks := int(now(t)-began) + 1; answered < rate || answered > rate*ticks {
				t.Errorf("IPv%d %s: %d of %d packets were answered in %d ticks, want %d in each", family, name, answered, packets, ticks, rate)
			}
			if after := n.count(events.NoBackend, bpf.DirectionIngress).Packets + n.count(events.NoBackend, bpf.DirectionEgress).Packets; after != before+packets {
				t.Errorf("IPv%d %s: %d drops were counted, want %d", family, name, after-before, packets)
			}
		}
	}
}

// nextTick waits for the start of a tick, when all rates are reset.
func nextTick(t *testing.T) {
	t.Helper()
	for began := now(t); now(t) == began; time.Sleep(5 * time.Millisecond) {
	}
}

// The node never rejects a packet to a group of the link, or from a source that is no single host.
func TestPrivilegedReject_MulticastGetsNoReply(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		n, service := newRejecting(t, family, 1000)
		from := func(addr string) netip.AddrPort { return on(netip.MustParseAddr(addr), 4000) }
		toAll := coming(on(client[family], 4000), service)
		toAll.to = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		toGroup := toAll
		toGroup.to = [6]byte{0x01, 0, 0x5e, 0, 0, 1}
		cases := map[string]flow{"to the broadcast address of the link": toAll, "to a group of the link": toGroup}
		for _, addr := range map[int][]string{4: {"224.0.0.1", "255.255.255.255", "0.0.0.0", "127.0.0.1"}, 6: {"ff02::1", "::"}}[family] {
			cases["from "+addr] = coming(from(addr), service)
		}
		for kind, packet := range rejected {
			for name, f := range cases {
				if got := n.run(bpf.NetdevIngress, ifUplink, packet(t, f)); got.action == actRedirect {
					t.Errorf("IPv%d: a %s %s is answered", family, kind, name)
				}
			}
			if got := n.run(bpf.NetdevIngress, ifUplink, packet(t, coming(on(client[family], 4000), service))); got.action != actRedirect {
				t.Errorf("IPv%d: a %s to the node is not answered: action %d", family, kind, int32(got.action))
			}
		}
	}
}

// A switch floods frames to all of its ports, and a device in promiscuous mode receives them: programs ignore frames to other hosts, even if their packets
// are addressed to a service.
func TestPrivilegedReject_FramesToOtherHosts_AreIgnored(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		n, service := newRejecting(t, family, 1000)
		served := on(balancer[family], 81)
		n.serve(50, served, loadbalancer.TCP, 0, on(podA.addr(family), 8080))
		for name, to := range map[string]netip.AddrPort{"without backends": service, "with a backend": served} {
			f := coming(on(client[family], 4000), to)
			f.to = networkMAC
			in := f.tcp(t, "S")
			t.Logf("IPv%d, a service %s", family, name)
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, in), actUnspec, in)
		}
	}
}

// The first IPv6 fragment of a datagram that is too big for the device towards the backend causes an ICMP error with the MTU; its inner packet contains the
// ports.
func TestPrivilegedReal_FirstFragmentIsTooBig(t *testing.T) {
	t.Parallel()
	s := newSurroundings(t, ethernetOnly)
	s.host.Do(func() {
		link, err := netlink.LinkByName("backbone")
		check(t, err)
		check(t, netlink.LinkSetMTU(link, 1300))
	})
	s.host.Enter()
	far := on(balancer[6], 53)
	s.serve(40, far, loadbalancer.UDP, 0, on(distantPod[6], 53))
	datagram := coming(on(client[6], 4000), far)
	datagram.payload = make(gopacket.Payload, 1400)
	whole := datagram.bytes(t)
	header := []byte{byte(layers.IPProtocolUDP), 0, 0, 1, 0, 0, 0, 7} // offset 0, more follow
	fragment := slices.Concat(whole[:l4At(6)], header, whole[l4At(6):])
	fragment[14+6] = byte(layers.IPProtocolIPv6Fragment)
	binary.BigEndian.PutUint16(fragment[14+4:], uint16(len(fragment)-14-40))

	got := s.run(bpf.NetdevIngress, ifUplink, fragment)
	if event := s.event(); event == nil || event.Reason != events.TooBig || got.action != actRedirect {
		t.Fatalf("action %d, event %+v", int32(got.action), event)
	}
	packet := gopacket.NewPacket(got.packet, layers.LayerTypeEthernet, gopacket.Default)
	icmp, _ := packet.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if icmp == nil || icmp.TypeCode.Type() != layers.ICMPv6TypePacketTooBig || binary.BigEndian.Uint32(icmp.Payload) != 1300 {
		t.Fatalf("the answer is %s", packet)
	}
	if inner := icmp.Payload[4:]; len(inner) < 40+16 || string(inner[:40+16]) != string(fragment[14:14+40+16]) {
		t.Errorf("the answer quotes % x", inner)
	}
	want := icmp.Checksum
	if err := icmp.SetNetworkLayerForChecksum(packet.NetworkLayer()); err != nil {
		t.Fatal(err)
	}
	again := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(again, gopacket.SerializeOptions{ComputeChecksums: true}, icmp, gopacket.Payload(icmp.Payload)); err != nil {
		t.Fatal(err)
	}
	if sum := binary.BigEndian.Uint16(again.Bytes()[2:]); sum != want {
		t.Errorf("checksum %04x, want %04x", want, sum)
	}
}
