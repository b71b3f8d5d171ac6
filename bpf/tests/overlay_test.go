package tests

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
)

func TestPrivilegedOverlayIngress_ForwardsPacketsOfSourceNode(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		pod := podA.addr(family)
		for name, c := range map[string]struct {
			from, to netip.Addr
			vni      uint32
			identity uint32 // of the mark
		}{
			"a known pod":                       {distantPod[family], pod, identityDistant, identityDistant},
			"a pod in a known range":            {distantPod[family].Next(), pod, identityFromVNI, identityFromVNI},
			"the other node itself":             {otherNode[family], pod, 6, 6},
			"to this node":                      {distantPod[family], gateways[family], identityDistant, identityDistant},
			"to the underlay address of a node": {distantPod[family], nodeIn[family], identityDistant, identityDistant},
		} {
			for _, underlay := range families { // the underlay of the other node may have another family
				n.arriveAs(outerHeader{from: otherNode[underlay], vni: c.vni})
				in := inside(c.from, c.to).bytes(t)
				got := n.runSkb(tunnelledAs, skBuff{Ifindex: ifTunnel}, in)
				n.wantPacket(got, actUnspec, in)
				if want := markOf(c.identity); got.mark != want {
					t.Errorf("%s over IPv%d: mark %#x, want %#x", name, underlay, got.mark, want)
				}
			}
		}
		if c := n.count(events.Forwarded, bpf.DirectionIngress); c.Packets != 10 {
			t.Errorf("counted %+v", c)
		}
	})
}

// The VNI is the identity of a sender that ipcache does not contain, if it is a cluster identity that policies know.
func TestPrivilegedOverlayIngress_IdentityOfTheSender(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		for word := range uint32(bpf.IdentityWords) {
			n.update(bpf.MapKnownIdentities, word, ^uint64(0))
		}
		const unheard = 4713
		word, bit := bpf.IdentityBit(unheard)
		n.update(bpf.MapKnownIdentities, word, ^bit)
		unresolved, server := distantPod[family].Next().Next(), otherNode[family].Next()
		n.update(bpf.MapIpcache, bpf.NewAddrKey(unresolved), bpf.IpcacheEntry{Node: otherID})
		n.update(bpf.MapIpcache, bpf.NewAddrKey(server), bpf.IpcacheEntry{Identity: 7, Node: otherID})
		type sender struct {
			from      netip.Addr
			vni, want uint32
			differs   uint64
		}
		unknown := distantPod[family].Next()
		cases := map[string]sender{
			"the lowest number of the cluster":       {unknown, 256, 256, 0},
			"the highest number of the cluster":      {unknown, 65535, 65535, 0},
			"an identity unknown to policies":        {unknown, unheard, 0, 0},
			"ipcache without identity of the pod":    {unresolved, 4712, 4712, 0},
			"ipcache and VNI differ":                 {distantPod[family], 4712, identityDistant, 1},
			"different, unknown to policies":         {distantPod[family], unheard, identityDistant, 1},
			"a known pod without a number":           {distantPod[family], 2, identityDistant, 1},
			"a node":                                 {otherNode[family], 6, 6, 0},
			"a node with an API server":              {server, 6, 7, 0},
			"a node with the identity of a pod":      {otherNode[family], 4712, 6, 1},
			"a known pod with the identity of nodes": {distantPod[family], 6, identityDistant, 1},
			"a known pod with a number of no pod":    {distantPod[family], 0x10000 | identityDistant, identityDistant, 1},
		}
		for _, vni := range []uint32{2, 3, 6, 7, 9, 10, 255, 65536, 0x800000, 0xffffff} {
			cases[fmt.Sprintf("VNI %#x is no pod's", vni)] = sender{unknown, vni, 0, 0}
		}
		for name, c := range cases {
			before := n.count(events.VNIDiffers, bpf.DirectionIngress)
			n.arriveAs(outerHeader{from: otherNode[4], vni: c.vni})
			in := inside(c.from, podA.addr(family)).bytes(t)
			got := n.runSkb(tunnelledAs, skBuff{Ifindex: ifTunnel}, in)
			n.wantPacket(got, actUnspec, in)
			if want := markOf(c.want); got.mark != want {
				t.Errorf("%s: mark %#x, want %#x", name, got.mark, want)
			}
			if after := n.count(events.VNIDiffers, bpf.DirectionIngress); after.Packets-before.Packets != c.differs {
				t.Errorf("%s: differences went from %d to %d, want %d more", name, before.Packets, after.Packets, c.differs)
			}
		}
	})
}

func TestPrivilegedOverlayIngress_Drops(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		pod, known := podA.addr(family), distantPod[family]
		for name, c := range map[string]struct {
			outer    outerHeader
			from, to netip.Addr
			reason   events.Reason
		}{
			"over IPv6 from no node":              {outerHeader{from: client[6], vni: 5}, known, pod, events.NoNode},
			"over IPv6 from this node":            {outerHeader{from: nodeIn[6], vni: 5}, known, pod, events.NoNode},
			"over IPv6 to another address":        {outerHeader{from: otherNode[6], vni: 5, to: nodeOut[6]}, known, pod, events.TunnelKey},
			"over IPv6 to another node's address": {outerHeader{from: otherNode[6], vni: 5, to: thirdNode[6]}, known, pod, events.TunnelKey},
			"a pod of a third node over IPv6":     {outerHeader{from: otherNode[6], vni: identityDistant}, thirdPod[family], pod, events.TunnelSource},
			"from no node":                        {outerHeader{from: client[4], vni: 5}, known, pod, events.NoNode},
			"from another address of this node":   {outerHeader{from: nodeIn[4], vni: 5}, known, pod, events.NoNode},
			"from the address of a pod":           {outerHeader{from: distantPod[4], vni: 5}, known, pod, events.NoNode},
			"to another address of this node":     {outerHeader{from: otherNode[4], vni: 5, to: nodeOut[4]}, known, pod, events.TunnelKey},
			"VNI 0":                               {outerHeader{from: otherNode[4], vni: 0}, known, pod, events.UnknownIdentity},
			"VNI 1, the host":                     {outerHeader{from: otherNode[4], vni: 1}, known, pod, events.UnknownIdentity},
			"a pod of a third node":               {outerHeader{from: otherNode[4], vni: identityDistant}, thirdPod[family], pod, events.TunnelSource},
			"a third node":                        {outerHeader{from: thirdNode[4], vni: 6}, otherNode[family], pod, events.TunnelSource},
			"a pod of this node":                  {outerHeader{from: otherNode[4], vni: 5}, podB.addr(family), pod, events.TunnelSource},
			"this node":                           {outerHeader{from: otherNode[4], vni: 6}, gateways[family], pod, events.TunnelSource},
			"a client outside":                    {outerHeader{from: otherNode[4], vni: 2}, client[family], pod, events.TunnelSource},
			"to a pod of another node":            {outerHeader{from: otherNode[4], vni: 5}, known, podB.addr(family).Next(), events.NoEndpoint},
			"to a third node, not allowed":        {outerHeader{from: otherNode[4], vni: 5}, known, thirdPod[family], events.NoEndpoint},
			"to the outside":                      {outerHeader{from: otherNode[4], vni: 5}, known, client[family], events.NoEndpoint},
		} {
			t.Run(name, func(t *testing.T) {
				n := n.as(t)
				n.refill(0)
				n.arriveAs(c.outer)
				e := n.wantDrop(tunnelledAs, ifTunnel, inside(c.from, c.to).bytes(t), c.reason, bpf.DirectionIngress)
				if e != nil && c.reason != events.TunnelKey && e.SourceIdentity != c.outer.vni {
					t.Errorf("event %+v, want the VNI %d as identity", e, c.outer.vni)
				}
			})
		}
		t.Run("a pod of this node in a range that the sender has now", func(t *testing.T) {
			n := n.as(t)
			local := bpf.NewAddrKey(known.Next())
			n.update(bpf.MapEndpoints, local, bpf.EndpointRef{Id: uint32(podB.id)})
			defer func() { check(t, n.maps[bpf.MapEndpoints].Delete(local)) }()
			n.refill(0)
			n.arriveAs(outerHeader{from: otherNode[4], vni: identityDistant})
			n.wantDrop(tunnelledAs, ifTunnel, inside(known.Next(), pod).bytes(t), events.TunnelSource, bpf.DirectionIngress)
		})
		n.refill(0)
		n.wantDrop(bpf.OverlayIngress, ifTunnel, inside(known, pod).bytes(t), events.TunnelKey, bpf.DirectionIngress) // without metadata
		n.arriveAs(outerHeader{from: otherNode[4], vni: 5})
		n.wantDrop(tunnelledAs, ifTunnel, arp(t, tunnelMAC, broadcast, arpRequest, tunnelMAC, gateway4, mac.Addr{}, podA.ipv4), events.UnknownL3, bpf.DirectionIngress)
	})
}

func TestPrivilegedHostEgress_SendsThroughTheTunnel(t *testing.T) {
	t.Parallel()
	for _, underlay := range families {
		onUnderlay(t, underlay, func(t *testing.T, n *node, family int) { sendsThroughTheTunnel(t, n, underlay, family) })
	}
}

func sendsThroughTheTunnel(t *testing.T, n *node, underlay, family int) {
	t.Helper()
	pod := podA.addr(family)
	for name, c := range map[string]flow{
		"a pod to a known pod":            fromStack(pod, distantPod[family]),
		"a pod to a pod in a known range": fromStack(pod, distantPod[family].Next()),
		"the node":                        fromStack(gateways[family], distantPod[family]),
	} {
		in := c.bytes(t)
		got := n.runSkb(bpf.HostEgress, skBuff{Ifindex: ifHost, Mark: 0xf00}, in)
		n.wantPacket(got, actRedirect, in)
		if got.mark != 0 {
			t.Errorf("%s: mark %#x", name, got.mark)
		}
	}
	// To pods of this node as without a tunnel.
	n.wantPacket(n.run(bpf.HostEgress, ifHost, fromStack(gateways[family], pod).bytes(t)), actRedirect, received(podA, gateways[family], pod).bytes(t))

	// A device first completes the checksums of packets to the node. The packets from that device, and packets that test the underlay, enter the tunnel at
	// once.
	n.update(bpf.MapOverlay, uint32(0), bpf.Overlay{Ifindex: ifTunnel, Way: ifHost})
	n.completes(otherID, otherNode[underlay], nodeIn[underlay], ifCompleter)
	for name, c := range map[string]struct {
		at, priority uint32
		tunnelled    bool
	}{
		"from the stack":                           {at: ifHost, priority: 5},
		"a test of the underlay":                   {at: ifHost, priority: bpf.OverlayUncompleted, tunnelled: true},
		"from the device that completes checksums": {at: ifUplink, tunnelled: true},
	} {
		in := fromStack(pod, distantPod[family]).bytes(t)
		got := n.runSkb(bpf.HostEgress, skBuff{Ifindex: c.at, Mark: 0xf00, Priority: c.priority}, in)
		n.wantPacket(got, actRedirect, in)
		if (got.mark == 0) != c.tunnelled {
			t.Errorf("%s: mark %#x, want that of the tunnel: %v", name, got.mark, c.tunnelled)
		}
	}
	n.reach(otherID, otherNode[underlay], nodeIn[underlay])

	n.wantDrop(bpf.HostEgress, ifHost, fromStack(pod, podB.addr(family).Next()).bytes(t), events.NoEndpoint, bpf.DirectionEgress)
	n.wantDrop(bpf.HostEgress, ifHost, fromStack(client[family], distantPod[family]).bytes(t), events.SourceIP, bpf.DirectionEgress)
	n.wantDrop(bpf.HostEgress, ifHost, fromStack(thirdPod[family], distantPod[family]).bytes(t), events.SourceIP, bpf.DirectionEgress)
	unreached := func(why string) {
		t.Run(why, func(t *testing.T) {
			n := n.as(t)
			n.refill(0)
			n.wantDrop(bpf.HostEgress, ifHost, fromStack(pod, distantPod[family]).bytes(t), events.NoTunnel, bpf.DirectionEgress)
		})
	}
	half := otherNode[underlay].AsSlice()
	half[len(half)/2-1]++
	torn, _ := netip.AddrFromSlice(half)
	n.reach(otherID, torn, nodeIn[underlay])
	unreached("a slot that is read while it is written has half of an address")
	n.reach(otherID, thirdNode[underlay], nodeIn[underlay])
	unreached("another node has the address now")
	n.update(bpf.MapNodes, uint32(otherID), bpf.Node{})
	unreached("a node without an address")
	n.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[family]), bpf.IpcacheEntry{Identity: identityDistant, Node: 65535})
	unreached("an id beyond the map")
	n.update(bpf.MapOverlay, uint32(0), bpf.Overlay{})
	unreached("no tunnel device")
}

// Outer packets of the node pass without an entry. A pod cannot reach the tunnel port with the address of the node as its source, even at addresses that
// belong to no node.
func TestPrivilegedNetdevEgress_TheTunnelIsForNodes(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		peer := on(client[family], tunnelPort)
		n.wantDropReason(n.sendFrom(podA, going(on(podA.addr(family), 40000), peer).bytes(t)), events.Encapsulated)
		outer := going(on(nodeOut[family], 40000), peer).bytes(t)
		n.wantPacket(n.nodeSends(outer), actUnspec, outer)
		n.wantNat(family, 0)
	})
}

// Other nodes have no route to a pod except the tunnel, so a pod uses the address of its node towards them; without a tunnel it uses its own.
func TestPrivilegedNetdevEgress_MasqueradesTowardsNodesWithATunnel(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		for _, identity := range []uint32{6, 7, 0x02000005} {
			n.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[family]), bpf.IpcacheEntry{Identity: identity, Node: otherID})
			port := uint16(40000 + identity&0xff)
			pod, own, peer := on(podA.addr(family), port), on(nodeOut[family], port), on(otherNode[family], 53)
			n.wantPacket(n.sendFrom(podA, going(pod, peer).bytes(t)), actUnspec, going(own, peer).bytes(t))
		}
		n.wantPacket(n.sendFrom(podA, going(on(podA.addr(family), 1), on(distantPod[family], 2)).bytes(t)), actUnspec,
			going(on(podA.addr(family), 1), on(distantPod[family], 2)).bytes(t))
	})
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		in := going(on(podA.addr(family), 40000), on(otherNode[family], 53)).bytes(t)
		n.wantPacket(n.sendFrom(podA, in), actUnspec, in)
	})
}

// Only nodes can send to the tunnel port.
func TestPrivilegedNetdevIngress_KeepsTheTunnelForNodes(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		from := func(src netip.Addr, port uint16) []byte {
			return coming(on(src, 40000), on(nodeOut[family], port)).bytes(t)
		}
		n.wantDrop(bpf.NetdevIngress, ifUplink, from(client[family], tunnelPort), events.NoNode, bpf.DirectionIngress)
		n.wantDrop(bpf.NetdevIngress, ifUplink, from(distantPod[family], tunnelPort), events.NoNode, bpf.DirectionIngress)
		n.wantDrop(bpf.NetdevIngress, ifUplink, from(nodeIn[family], tunnelPort), events.NoNode, bpf.DirectionIngress)
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, from(otherNode[family], tunnelPort)), actUnspec, from(otherNode[family], tunnelPort))
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, from(client[family], tunnelPort+1)), actUnspec, from(client[family], tunnelPort+1))
		// A packet that is not for this node is forwarded to its destination.
		transit := coming(on(client[family], 40000), on(otherNode[family], tunnelPort)).bytes(t)
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, transit), actUnspec, transit)
	})
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		in := coming(on(client[family], 40000), on(nodeOut[family], tunnelPort)).bytes(t)
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, in), actUnspec, in)
	})
}

// A pod cannot send to the tunnel of a node: the inner packet could have the address of any pod of this node.
func TestPrivilegedPodEgress_KeepsPodsOutOfTheTunnel(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		to := func(dst netip.Addr, port uint16) []byte {
			f := sent(podA, podA.addr(family), dst)
			f.sport, f.dport = 40000, port
			return f.bytes(t)
		}
		for _, node := range []netip.Addr{otherNode[family], nodeIn[family], gateways[family]} {
			n.wantDrop(bpf.PodEgress, ifPodA, to(node, tunnelPort), events.Encapsulated, bpf.DirectionEgress)
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, to(node, tunnelPort+1)), actOK, to(node, tunnelPort+1))
		}
		for _, other := range []netip.Addr{client[family], distantPod[family]} {
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, to(other, tunnelPort)), actOK, to(other, tunnelPort))
		}
	})
}

// Without its step, packets of a pod to another node go to the stack.
func TestPrivilegedPodEgress_MissingStep_PassesToStack(t *testing.T) {
	t.Parallel()
	onTunnelWith(t, encapAll, func(t *testing.T, n *node, family int) {
		n.withoutStep(stepToNode)
		in := sent(podA, podA.addr(family), distantPod[family]).bytes(t)
		for _, state := range []string{"new", "known"} {
			got := n.run(bpf.PodEgress, ifPodA, in)
			n.wantPacket(got, actOK, in)
			if want := markOf(identityPod + uint32(podA.id)); got.mark != want {
				t.Errorf("%s: mark %#x, want %#x", state, got.mark, want)
			}
		}
	})
}

// A Service cannot lead into the tunnel of a node, neither for outside clients nor for pods: the node would accept their packets as packets of a node.
func TestPrivilegedServices_DoNotLeadIntoTheTunnel(t *testing.T) {
	t.Parallel()
	s := newSurroundings(t, ethernetOnly, map[string]uint32{bpf.VariableTunnelPort: tunnelPort})
	for _, family := range families {
		s.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[family]), bpf.IpcacheEntry{Identity: 6, Node: otherID})
		for i, backend := range []netip.AddrPort{on(otherNode[family], tunnelPort), on(otherNode[family], tunnelPort+1)} {
			service := on(balancer[family], uint16(80+i))
			s.serve(uint32(10*family+i), service, loadbalancer.UDP, 0, backend)
			s.host.Do(func() {
				outside := s.run(bpf.NetdevIngress, ifUplink, coming(on(client[family], 40000), service).bytes(t))
				pod := s.run(bpf.PodEgress, ifPodA, sent(podA, podA.addr(family), service.Addr()).ports(40000, service.Port()).bytes(t))
				if backend.Port() == tunnelPort {
					s.wantDropReason(outside, events.Encapsulated)
					s.wantDropReason(pod, events.Encapsulated)
					s.wantNat(family, 0)
				} else if outside.action == actShot || pod.action == actShot {
					t.Errorf("IPv%d to port %d of a node: actions %d for a client outside and %d for a pod", family, backend.Port(), outside.action, pod.action)
				}
			})
		}
	}
}
