package tests

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
)

var (
	uplinkMAC  = mac.Addr{2, 0, 0, 0, 2, 1}
	networkMAC = mac.Addr{2, 0, 0, 0, 2, 9}
)

// coming and going are packets on a device towards the outside.
func coming(src, dst netip.AddrPort) flow {
	return flow{from: networkMAC, to: uplinkMAC, src: src.Addr(), dst: dst.Addr(), sport: src.Port(), dport: dst.Port()}
}

func going(src, dst netip.AddrPort) flow {
	return flow{from: uplinkMAC, to: networkMAC, src: src.Addr(), dst: dst.Addr(), sport: src.Port(), dport: dst.Port()}
}

// on returns the port of an address.
func on(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }

// onNetdevs runs a test with a node that has devices towards the outside, for each family.
func onNetdevs(t *testing.T, test func(t *testing.T, n *node, family int)) {
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.surround()
		test(t, n, family)
	})
}

// sendFrom sends a packet of a pod, whose ingress device is the pod's link, through the egress of the uplink.
func (n *node) sendFrom(p pod, packet []byte) outcome {
	n.t.Helper()
	return n.runSkb(bpf.NetdevEgress, skBuff{Ifindex: ifUplink, IngressIfindex: p.ifindex}, packet)
}

// Whole packets, checksums included, in both directions.
func TestPrivilegedNetdev_MasqueradesBothDirections(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		pod, node, server := on(podA.addr(family), 40000), on(nodeOut[family], 40000), on(client[family], 53)
		n.wantPacket(n.sendFrom(podA, going(pod, server).bytes(t)), actUnspec, going(node, server).bytes(t))
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(server, node).bytes(t)), actUnspec, coming(server, pod).bytes(t))
		// Not for another host, nor from another port.
		otherHost := coming(on(client[family].Next(), 53), node).bytes(t)
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, otherHost), actUnspec, otherHost)
		other := coming(on(client[family], 54), node).bytes(t)
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, other), actUnspec, other)
	})
}

func TestPrivilegedNetdev_OtherTraffic_IsUnchanged(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		pod := on(podA.addr(family), 40000)
		for name, packet := range map[string]flow{
			"to a remote pod":              going(pod, on(distantPod[family], 53)),
			"to another node":              going(pod, on(otherNode[family], 53)),
			"from another source":          going(on(balancer[family], 40000), on(client[family], 53)),
			"from the node, from low down": going(on(nodeOut[family], 22), on(client[family], 40000)),
		} {
			in := packet.bytes(t)
			n.wantPacket(n.sendFrom(podA, in), actUnspec, in)
			if t.Failed() {
				t.Fatal(name)
			}
		}
		// A device without an entry changes nothing.
		in := going(pod, on(client[family], 53)).bytes(t)
		n.wantPacket(n.runSkb(bpf.NetdevEgress, skBuff{Ifindex: ifUnmanaged, IngressIfindex: ifPodA}, in), actUnspec, in)
		// Without its flag the family is not masqueraded.
		n.update(bpf.MapNetdevs, uint32(ifUplink), bpf.Netdev{Ipv4: bpf.IPv4Word(nodeOut[4]), Ipv6: bpf.IPv6Bytes(nodeOut[6])})
		n.wantPacket(n.sendFrom(podA, in), actUnspec, in)
	})
}

// A client's packet goes to the local backend, whose reply has the service's address.
func TestPrivilegedNetdev_LocalBackend(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		from, service, backend := on(client[family], 4000), on(balancer[family], 80), on(podA.addr(family), 8080)
		n.serve(1, service, loadbalancer.UDP, 0, backend)
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(from, service).bytes(t)), actUnspec, coming(from, backend).bytes(t))
		n.wantPacket(n.sendFrom(podA, going(backend, from).bytes(t)), actUnspec, going(service, from).bytes(t))
		// The same client connects by another service to the same backend, from the same port: the backend must distinguish both flows.
		n.serve(2, on(balancer[family], 81), loadbalancer.UDP, 0, backend)
		got := n.run(bpf.NetdevIngress, ifUplink, coming(from, on(balancer[family], 81)).bytes(t))
		if got.action != actUnspec || string(got.packet) == string(coming(from, backend).bytes(t)) {
			t.Errorf("action %d: both connections look the same to the backend", got.action)
		}
	})
}

// A pod on another node may use a port for a service, and when that connection has ended, for the backend itself, and the reverse.
func TestPrivilegedNetdev_PortReusedForBackend(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		from, service, server := on(distantPod[family], 4000), on(balancer[family], 80), on(podA.addr(family), 8080)
		n.serve(1, service, loadbalancer.TCP, 0, server)
		for _, asked := range []netip.AddrPort{service, server, service} {
			for _, flags := range []string{"S", "A", "FA", "A"} {
				n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(from, asked).tcp(t, flags)), actUnspec, coming(from, server).tcp(t, flags))
				answer := strings.Replace(flags, "S", "SA", 1)
				n.wantPacket(n.run(bpf.NetdevEgress, ifUplink, going(server, from).tcp(t, answer)), actUnspec, going(asked, from).tcp(t, answer))
			}
		}
	})
}

// Clients that are not served are dropped, each with a specific reason.
func TestPrivilegedNetdev_Drops(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		from, backend := on(client[family], 4000), on(podA.addr(family), 8080)
		to := func(port uint16) netip.AddrPort { return on(balancer[family], port) }
		n.serve(1, to(1), loadbalancer.UDP, int(bpf.ServiceLocalOnly|bpf.ServiceDrop)) // other nodes have backends
		n.serve(2, to(2), loadbalancer.UDP, int(bpf.ServiceDrop))
		n.serve(3, to(3), loadbalancer.UDP, int(bpf.ServiceRanges), backend)
		n.update(bpf.MapSourceRanges, bpf.NewSourceRangeKey(3, bpf.SourceRange{Prefix: netip.PrefixFrom(client[10-family], 0)}), uint32(1)) // of the other family
		n.serve(5, to(5), loadbalancer.UDP, 0, backend)
		n.update(bpf.MapServices, bpf.NewServiceKey(loadbalancer.Address{Addr: balancer[family], Port: 4, Protocol: loadbalancer.UDP}, bpf.ScopeExternal),
			bpf.Service{Id: 4, First: 30, Count: 1})
		for name, c := range map[string]struct {
			in     flow
			reason events.Reason
		}{
			"no local backend":     {coming(from, to(1)), events.NoBackend},
			"no backend, no reply": {coming(from, to(2)), events.NoBackend},
			"out of range":         {coming(from, to(3)), events.SourceRange},
			"within the cluster":   {coming(from, to(4)), events.ClusterIP},
			"as a pod":             {coming(on(podB.addr(family), 4000), to(5)), events.SourceIP},
			"as the node":          {coming(on(nodeOut[family], 4000), to(5)), events.SourceIP},
		} {
			n.wantDrop(bpf.NetdevIngress, ifUplink, c.in.bytes(t), c.reason, bpf.DirectionIngress)
			if t.Failed() {
				t.Fatal(name)
			}
		}
		// An address in the range is served.
		key := bpf.SourceRangeKey{Prefixlen: 64 + uint32(client[family].BitLen()), Service: 3, Family: uint8(family)}
		copy(key.Addr[:], client[family].AsSlice())
		n.update(bpf.MapSourceRanges, key, uint32(1))
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(from, to(3)).bytes(t)), actUnspec, coming(from, backend).bytes(t))
	})
}

// Denying ranges drop their clients, and allow clients outside of them and all of the other family.
func TestPrivilegedNetdev_DenyingRanges(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		from, to, backend := on(client[family], 4000), on(balancer[family], 80), on(podA.addr(family), 8080)
		n.serve(3, to, loadbalancer.UDP, int(bpf.ServiceRanges|bpf.ServiceRangesDeny), backend)
		n.update(bpf.MapSourceRanges, bpf.NewSourceRangeKey(3, bpf.SourceRange{Prefix: netip.PrefixFrom(client[10-family], 0), Deny: true}), uint32(1))
		n.update(bpf.MapSourceRanges, bpf.NewSourceRangeKey(3, bpf.SourceRange{Prefix: netip.PrefixFrom(client[family], 16), Deny: false}), uint32(1)) // of a previous policy
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(from, to).bytes(t)), actUnspec, coming(from, backend).bytes(t))
		from = on(client[family], 4001)
		n.update(bpf.MapSourceRanges, bpf.NewSourceRangeKey(3, bpf.SourceRange{Prefix: netip.PrefixFrom(client[family], 16), Deny: true}), uint32(1))
		n.wantDrop(bpf.NetdevIngress, ifUplink, coming(from, to).bytes(t), events.SourceRange, bpf.DirectionIngress)
		// If ranges that deny were read as ranges that allow, they would match no client: so a previous build reads them.
		n.serve(4, on(balancer[family], 81), loadbalancer.UDP, int(bpf.ServiceRanges), backend)
		n.update(bpf.MapSourceRanges, bpf.NewSourceRangeKey(4, bpf.SourceRange{Prefix: netip.PrefixFrom(client[family], 16), Deny: true}), uint32(1))
		n.wantDrop(bpf.NetdevIngress, ifUplink, coming(from, on(balancer[family], 81)).bytes(t), events.SourceRange, bpf.DirectionIngress)
	})
}

// With all ports towards one server in use the next flow is dropped, and the event names its endpoint. Flows to another server are not affected.
func TestPrivilegedNetdev_PortsRunOut(t *testing.T) {
	t.Parallel()
	n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableNatPortFirst: 40000, bpf.VariableNatPortLast: 40003}, nil)
	n.surround()
	for _, family := range families {
		server, packet := on(client[family], 53), func(port uint16) []byte {
			return going(on(podB.addr(family), port), on(client[family], 53)).bytes(t)
		}
		used := map[string]bool{}
		for port := range uint16(4) {
			got := n.sendFrom(podB, packet(2000+port))
			if got.action != actUnspec || used[string(got.packet)] {
				t.Errorf("IPv%d: flow %d: action %d, or as another flow; event %+v", family, port, got.action, n.event())
			}
			used[string(got.packet)] = true
		}
		before := n.count(events.NoMapping, bpf.DirectionEgress)
		if got := n.sendFrom(podB, packet(3000)); got.action != actShot {
			t.Errorf("IPv%d: a fifth flow found one of four ports", family)
		}
		if after := n.count(events.NoMapping, bpf.DirectionEgress); after.Packets != before.Packets+1 {
			t.Errorf("IPv%d: counted %d drops, want one more than %d", family, after.Packets, before.Packets)
		}
		if e := n.event(); e == nil || e.Endpoint != podB.id || e.Reason != events.NoMapping {
			t.Errorf("IPv%d: event %+v, want one of endpoint %d", family, e, podB.id)
		}
		elsewhere := going(on(podB.addr(family), 3000), on(server.Addr(), 54)).bytes(t)
		if got := n.sendFrom(podB, elsewhere); got.action != actUnspec {
			t.Errorf("IPv%d: no port towards another server; event %+v", family, n.event())
		}
		// Flows with a port continue.
		if got := n.sendFrom(podB, packet(2000)); got.action != actUnspec || !used[string(got.packet)] {
			t.Errorf("IPv%d: a flow that goes on: action %d", family, got.action)
		}
	}
}

// A pod cannot use all ports towards a destination: other pods and the node always find one.
func TestPrivilegedNetdev_OnePodLeavesPorts(t *testing.T) {
	t.Parallel()
	const guaranteed, ports = 4, 64
	n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableNatPortFirst: 40000, bpf.VariableNatPortLast: 40000 + ports - 1,
		bpf.VariableNatGuarantees: guaranteed}, nil)
	n.surround()
	for _, family := range families {
		server := on(client[family], 53)
		flows := 0
		for port := range uint16(1000) {
			if got := n.sendFrom(podB, going(on(podB.addr(family), 40000+port), server).bytes(t)); got.action == actUnspec {
				flows++
			}
			n.event() // of a drop
		}
		// All even ports, perhaps one odd one of its group, and some odd ones among its guaranteed flows.
		if flows < ports/2 || flows > ports/2+1+guaranteed {
			t.Errorf("IPv%d: a pod has %d flows through %d ports, want about half", family, flows, ports)
		}
		for port := range uint16(guaranteed) {
			if got := n.sendFrom(podA, going(on(podA.addr(family), 2000+port), server).bytes(t)); got.action != actUnspec {
				t.Errorf("IPv%d: no port for flow %d of another pod; event %+v", family, port, n.event())
			}
		}
		// The node's own flow from a port of the pod gets another port, so its replies do not reach the pod.
		own := on(nodeOut[family], 40000)
		got := n.nodeSends(going(own, server).bytes(t))
		if got.action != actUnspec {
			t.Fatalf("IPv%d: the node's packet: action %d", family, int32(got.action))
		}
		port := uint16(got.packet[l4At(family)])<<8 | uint16(got.packet[l4At(family)+1])
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(server, on(own.Addr(), port)).bytes(t)), actUnspec, coming(server, own).bytes(t))
	}
}

// Two pods ping the same host with the same identifier; each gets its own replies, and the host may ping the node with this identifier too.
func TestPrivilegedNetdev_EchoIdentifiers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.surround()
	const id = 40000
	echo := func(from, to mac.Addr, src, dst netip.Addr, kind uint8, id uint16) []byte {
		proto, _, _ := flow{src: src, dst: dst}.network()
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		return serialize(t, ether(from, to, proto), ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: id, Seq: 1})
	}
	request := func(p pod) []byte { return echo(uplinkMAC, networkMAC, p.ipv4, client[4], 8, id) }
	n.wantPacket(n.sendFrom(podA, request(podA)), actUnspec, echo(uplinkMAC, networkMAC, nodeOut[4], client[4], 8, id))
	second := n.sendFrom(podB, request(podB))
	got := uint16(second.packet[offIP+24])<<8 | uint16(second.packet[offIP+25])
	if got == id {
		t.Fatal("both pods ask with the same identifier")
	}
	n.wantPacket(second, actUnspec, echo(uplinkMAC, networkMAC, nodeOut[4], client[4], 8, got))
	n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, echo(networkMAC, uplinkMAC, client[4], nodeOut[4], 0, id)), actUnspec,
		echo(networkMAC, uplinkMAC, client[4], podA.ipv4, 0, id))
	n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, echo(networkMAC, uplinkMAC, client[4], nodeOut[4], 0, got)), actUnspec,
		echo(networkMAC, uplinkMAC, client[4], podB.ipv4, 0, id))
	question := echo(networkMAC, uplinkMAC, client[4], nodeOut[4], 8, id)
	n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, question), actUnspec, question)
}
