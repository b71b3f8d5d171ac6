package tests

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/mac"
)

// A segment that does not change its established connection is delivered directly into the pod, and counts for the connection as in the program of the pod.
// All other segments go through that program.
func TestPrivilegedNetdevIngress_EstablishedFlowsEnterPodDirectly(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, device mac.Addr) {
		n := s.in(t)
		opens := received(podA, distantPod[family], podA.addr(family)).ports(4010, 80)
		arrives := func() { n.arrives(podA, ifBackbone, opens.tcp(t, "A")) }
		n.arrives(podA, ifBackbone, opens.tcp(t, "S"))
		n.passes(podA, unpadded(opens.back(podA).tcp(t, "SA")), actRedirect)
		arrives()
		data := flow{from: networkMAC, to: device, src: opens.src, dst: opens.dst}.ports(4010, 80)
		counts := func(what, flags string, want uint64) {
			t.Helper()
			frame := unpadded(data.tcp(t, flags))
			before := n.onlyFlow("est", family)
			n.wantPacket(n.run(bpf.NetdevIngress, ifBackbone, frame), actRedirect, framed(oneHopLess(frame), podA.mac, podA.host))
			after := n.onlyFlow("est", family)
			if packets, bytes := after.Packets-before.Packets, after.Bytes-before.Bytes; packets != want || bytes != want*uint64(len(frame)) {
				t.Errorf("%s: the connection has %d packets and %d bytes more, want %d packets", what, packets, bytes, want)
			}
		}
		counts("a segment", "A", 1)
		for _, flags := range []string{"S", "FA", "R"} {
			counts("a segment with "+flags, flags, 0)
		}
		n.facts(podA, func(*bpf.EndpointFacts) {})
		counts("after a change of the pod", "A", 0)
		arrives()
		counts("when its program has judged that", "A", 1)
		n.raise(bpf.MapEpochShards, bpf.EpochShard(distantPod[family]))
		counts("after a change of the sender", "A", 0)
		arrives()
		counts("when its program has judged that", "A", 1)
		for what, change := range map[string]func(*bpf.CtEntry){
			"of a translated connection": func(e *bpf.CtEntry) { e.Flags |= bpf.CtTranslated },
			"closing":                    func(e *bpf.CtEntry) { e.Flags |= bpf.CtInitiatorFin },
			"expired":                    func(e *bpf.CtEntry) { e.Expires = now(t) - 1 },
			"of another key":             func(e *bpf.CtEntry) { e.Check ^= 2 },
			"initiated by this node":     func(e *bpf.CtEntry) { e.InitiatorIdentity = 1 },
		} {
			was := n.onlyFlow("est", family)
			n.changeFlows("est", family, change)
			counts(what, "A", 0)
			n.changeFlows("est", family, func(e *bpf.CtEntry) { *e = was })
			counts("as before", "A", 1)
		}
	})
}

// Packets of a pod of another node in an established flow bypass the program of the pod, with routes and through the tunnel.
func TestPrivilegedReal_EstablishedFlowsEnterPodDirectly(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *surroundings{
		"routes": func(t *testing.T) *surroundings { return newDirectNode(t, alone, bpf.NodeDirect) },
		"tunnel": func(t *testing.T) *surroundings { return newTunnelNode(t, encapAll) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			passed := func() (packets uint64) {
				s.host.Do(func() {
					link, err := netlink.LinkByName("poda")
					check(t, err)
					packets = link.Attrs().Statistics.TxPackets
				})
				return packets
			}
			for _, family := range families {
				if name == "tunnel" && !decapsulates(family) {
					continue
				}
				pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
				const exchanges = 20
				before := passed()
				s.exchange(t, pod, distant, 100)
				if passed() == before {
					t.Errorf("IPv%d: the first datagrams have not passed the link of the pod", family)
				}
				s.exchange(t, pod, distant, 100) // the flow is established
				before = passed()
				for range exchanges {
					s.exchange(t, pod, distant, 100)
				}
				if after := passed(); after-before >= exchanges {
					t.Errorf("IPv%d: %d datagrams have passed the link of the pod", family, after-before)
				}
			}
		})
	}
}
