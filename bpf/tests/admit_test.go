package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// Packets from another node or its pods, for this node or a local pod, get the mark with which the nftables rules accept them outside of the tunnel. Packets
// from other hosts, with the address of a local pod, or for other destinations get no mark. No packets get the mark if nodes send only through the tunnel, or
// if some nodes may send outside of it but the sending node may not.
func TestPrivilegedNetdev_MarksPacketsOutsideTunnel(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		accepted uint32
		flags    uint8
		allowed  bool
	}{{0, bpf.NodeRouted, false}, {bpf.AcceptsAll, 0, true}, {bpf.AcceptsRouted, 0, false}, {bpf.AcceptsRouted, bpf.NodeRouted, true}} {
		n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableTunnelPort: tunnelPort, bpf.VariableDirectAccepted: of.accepted}, nil)
		n.surround()
		n.update(bpf.MapNodes, uint32(otherID), bpf.Node{Mode: bpf.NodeDirect, Flags: of.flags})
		for _, f := range families {
			n.update(bpf.MapIpcachePrefixes, bpf.NewLpmKey(distantRange[f]), bpf.IpcacheEntry{Node: otherID})
			n.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[f]), bpf.IpcacheEntry{Identity: identityDistant, Node: otherID})
			n.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[f]), bpf.IpcacheEntry{Identity: 6, Node: otherID})
			for name, c := range map[string]struct {
				from, to netip.Addr
				want     uint32
			}{
				"pod of the range to pod": {distantRange[f].Addr().Next(), podA.addr(f), markOf(0)},
				"pod to pod":              {distantPod[f], podA.addr(f), markOf(identityDistant)},
				"pod to node":             {distantPod[f], nodeOut[f], markOf(identityDistant)},
				"node to pod":             {otherNode[f], podA.addr(f), markOf(6)},
				"client to node":          {client[f], nodeOut[f], 0},
				"client to pod":           {client[f], podA.addr(f), 0},
				"local pod to local pod":  {podB.addr(f), podA.addr(f), 0},
				"this node to a pod":      {nodeOut[f], podA.addr(f), 0},
				"pod to somewhere else":   {distantPod[f], client[f], 0},
				"pod to the node itself":  {distantPod[f], otherNode[f], 0},
			} {
				if !of.allowed {
					c.want = 0
				}
				in := coming(on(c.from, 40000), on(c.to, 4000)).bytes(t)
				got := n.run(bpf.NetdevIngress, ifUplink, in)
				n.wantPacket(got, actUnspec, in)
				if got.mark != c.want {
					t.Errorf("IPv%d, %s, accepted %d with flags %d: mark %#x, want %#x", f, name, of.accepted, of.flags, got.mark, c.want)
				}
				if got := n.run(bpf.NetdevIngress, 1, in); got.mark != 0 { // the next packet, of the loopback device
					t.Errorf("IPv%d, %s, on another device: mark %#x", f, name, got.mark)
				}
			}
		}
	}
}

// Packets to pods of a node that is reached without the tunnel are left to the stack where programs do not forward them. The routes in this test lead to the
// tunnel device, which sends the packets.
func TestPrivilegedPodEgress_LeavesDirectNodesToTheStack(t *testing.T) {
	t.Parallel()
	s := newTunnelNode(t, encapAll)
	for _, family := range families {
		pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
		for _, mode := range []uint8{bpf.NodeTunnel, bpf.NodeDirect, bpf.NodeTunnel} {
			key := bpf.NewAddrKey(otherNode[4])
			s.update(bpf.MapNodes, uint32(otherID), bpf.Node{Mode: mode, Family: key.Family, Underlay: key.Addr, UnderlaySource: bpf.NewAddrKey(nodeIn[4]).Addr})
			afterTick()
			_, before := s.throughDevice()
			s.exchange(t, pod, distant, 100)
			if _, after := s.throughDevice(); (after > before) != (mode == bpf.NodeDirect) {
				t.Errorf("IPv%d, mode %d: the device has sent %d packets", family, mode, after-before)
			}
		}
	}
}
