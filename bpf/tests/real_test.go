package tests

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Real sockets in real namespaces: ARP and neighbour discovery of the pods' kernels included, datagrams of one packet
// and of several fragments.
func TestPrivilegedReal_Datagrams(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	for _, family := range families {
		a, b := listenUDP(t, r.a, podA.addr(family)), listenUDP(t, r.b, podB.addr(family))
		host := listenUDP(t, r.host, gateways[family])
		for _, f := range []func(size int){
			func(size int) { r.exchange(t, a, b, size) },
			func(size int) { r.exchange(t, b, host, size) },
			func(size int) { r.exchange(t, host, a, size) },
		} {
			for _, size := range []int{1, 1400, 4000} {
				f(size)
			}
		}
	}
	if c := r.count(events.SourceIP, bpf.DirectionEgress); c.Packets != 0 {
		t.Errorf("%d packets were taken for spoofed", c.Packets)
	}
}

// The pod's kernel accepts the replies of the programs immediately: it does not have to send another request.
func TestPrivilegedReal_GatewayIsReachable(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	r.a.Do(func() { // by default an entry becomes stale after 15 to 45 s
		for _, family := range []string{"ipv4", "ipv6"} {
			check(t, writeSetting(family+"/neigh/eth0/base_reachable_time_ms", "3600000"))
		}
	})
	for _, family := range families {
		r.exchange(t, listenUDP(t, r.a, podA.addr(family)), listenUDP(t, r.b, podB.addr(family)), 10)
	}
	r.a.Do(func() {
		entries, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		check(t, err)
		states := map[string]int{}
		for _, e := range entries {
			states[e.IP.String()] = e.State
		}
		for _, gw := range gateways {
			if got := states[gw.String()]; got != netlink.NUD_REACHABLE {
				t.Errorf("gateway %s is in state %#x, want reachable", gw, got)
			}
		}
	})
}

// A stream of segmentation-offloaded packets arrives intact, between pods and from the node.
func TestPrivilegedReal_Streams(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	data := bytes.Repeat([]byte("waggle dance "), 100_000)
	for _, family := range families {
		for name, from := range map[string]*testnet.Namespace{"pod": r.a, "node": r.host} {
			if got := stream(t, from, r.b, podB.addr(family), data); !bytes.Equal(got, data) {
				t.Errorf("IPv%d from the %s: %d of %d bytes arrived; last event %+v", family, name, len(got), len(data), r.event())
			}
		}
	}
}

// stream sends data over TCP and returns the received data.
func stream(t *testing.T, from, to *testnet.Namespace, addr netip.Addr, data []byte) []byte {
	t.Helper()
	var listener *net.TCPListener
	to.Do(func() {
		var err error
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		check(t, err)
	})
	defer listener.Close()
	var client net.Conn
	from.Do(func() {
		var err error
		client, err = net.DialTimeout("tcp", listener.Addr().String(), testTimeout)
		check(t, err)
	})
	defer client.Close()
	check(t, listener.SetDeadline(time.Now().Add(testTimeout)))
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		_, _ = client.Write(data)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(limited(t, server))
	check(t, err)
	return got
}

// A packet whose TTL expires on its path to another pod causes an ICMP error from the gateway, sent by the stack.
func TestPrivilegedReal_TTLExpires(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	for _, c := range []struct {
		family     int
		network    string
		level, opt int
		kind       byte // time exceeded
	}{
		{family: 4, network: "ip4:icmp", level: unix.IPPROTO_IP, opt: unix.IP_TTL, kind: 11},
		{family: 6, network: "ip6:ipv6-icmp", level: unix.IPPROTO_IPV6, opt: unix.IPV6_UNICAST_HOPS, kind: 3},
	} {
		var raw net.PacketConn
		r.a.Do(func() {
			var err error
			raw, err = net.ListenPacket(c.network, podA.addr(c.family).String())
			check(t, err)
		})
		defer raw.Close()
		a, b := listenUDP(t, r.a, podA.addr(c.family)), listenUDP(t, r.b, podB.addr(c.family))
		control, err := a.SyscallConn()
		check(t, err)
		check(t, control.Control(func(fd uintptr) { check(t, unix.SetsockoptInt(int(fd), c.level, c.opt, 1)) }))
		if _, err := a.WriteToUDPAddrPort([]byte("too far"), portOf(b)); err != nil {
			t.Fatal(err)
		}
		check(t, raw.SetDeadline(time.Now().Add(testTimeout)))
		buf := make([]byte, 512)
		for {
			n, peer, err := raw.ReadFrom(buf)
			if err != nil {
				t.Fatalf("IPv%d: no error came back: %v; last event %+v", c.family, err, r.event())
			}
			if n > 0 && buf[0] == c.kind {
				if got := peer.(*net.IPAddr).IP.String(); got != gateways[c.family].String() {
					t.Errorf("IPv%d: the error came from %s", c.family, got)
				}
				break
			}
		}
	}
}

// Frames that PROG_TEST_RUN cannot create: truncated inside the IP header, and with a tag that the kernel moves out of band.
func TestPrivilegedReal_ShortFrames(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	v4, v6 := sent(podA, podA.ipv4, podB.ipv4).bytes(t), sent(podA, podA.ipv6, podB.ipv6).bytes(t)
	proto, _, ip := sent(podA, podA.ipv4, podB.ipv4).network()
	tagged := serialize(t, ether(podA.mac, podA.host, layers.EthernetTypeDot1Q),
		&layers.Dot1Q{VLANIdentifier: 5, Type: proto}, ip, gopacket.Payload(make([]byte, 40)))
	double := serialize(t, ether(podA.mac, podA.host, layers.EthernetTypeQinQ), &layers.Dot1Q{VLANIdentifier: 6,
		Type: layers.EthernetTypeDot1Q},
		&layers.Dot1Q{VLANIdentifier: 5, Type: proto}, ip, gopacket.Payload(make([]byte, 40)))
	for name, c := range map[string]struct {
		in     []byte
		reason events.Reason
	}{
		"no IPv4 header":      {v4[:offIP+1], events.Truncated},
		"half an IPv4 header": {v4[:offIP+19], events.Truncated},
		"no IPv6 header":      {v6[:offIP+1], events.Truncated},
		"half an IPv6 header": {v6[:offIP+39], events.Truncated},
		"one tag":             {tagged, events.VLANFilter},
		"two tags":            {double, events.VLANFilter},
	} {
		before := r.count(c.reason, bpf.DirectionEgress)
		r.a.Do(func() { check(t, sendFrame(c.in)) })
		if !r.grows(before, c.reason) {
			t.Errorf("%s: %q was not counted; last event %+v", name, c.reason, r.event())
		}
	}
}

// Headers that are not in the linear part of a packet are pulled there, for every kind of packet.
func TestPrivilegedReal_PagedHeaders(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	for _, family := range families {
		b := listenUDP(t, r.b, podB.addr(family))
		f := sent(podA, podA.addr(family), podB.addr(family))
		proto, network, ip := f.network()
		udp := &layers.UDP{SrcPort: 1234, DstPort: layers.UDPPort(portOf(b).Port())}
		check(t, udp.SetNetworkLayerForChecksum(network))
		frame := serialize(t, ether(f.from, f.to, proto), ip, udp, gopacket.Payload(bytes.Repeat([]byte("page"), 300)))
		r.a.Do(func() { check(t, sendPaged(frame)) })
		n, peer, err := limited(t, b).ReadFromUDPAddrPort(make([]byte, 2000))
		if err != nil || n != 1200 || peer != netip.AddrPortFrom(podA.addr(family), 1234) {
			t.Errorf("IPv%d: %d bytes from %s, %v; last event %+v", family, n, peer, err, r.event())
		}
	}
	for name, in := range map[string][]byte{
		"ARP": arp(t, podA.mac, broadcast, arpRequest, podA.mac, podA.ipv4, mac.Addr{}, gateway4),
		"ND":  solicitation(podA, podA.ipv6, solicitedNode(gateway6), gateway6).bytes(t),
	} {
		before := r.count(events.Forwarded, bpf.DirectionEgress)
		r.a.Do(func() { check(t, sendPaged(in)) })
		if !r.grows(before, events.Forwarded) {
			t.Errorf("%s was not answered; last event %+v", name, r.event())
		}
	}
	for _, reason := range []events.Reason{events.Truncated, events.Malformed, events.WriteFailed} {
		if c := r.count(reason, bpf.DirectionEgress); c.Packets != 0 {
			t.Errorf("%d packets were dropped for %q", c.Packets, reason)
		}
	}
}

// The kernel cannot truncate a packet before a checksum that it still has to compute.
func TestPrivilegedReal_ReplyDoesNotFit(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	ask := solicitation(podA, podA.ipv6, gateway6, gateway6)
	ask.body = &layers.ICMPv6NeighborSolicitation{TargetAddress: net.IP(gateway6.AsSlice()), Options: layers.ICMPv6Options{
		{Type: layers.ICMPv6OptSourceAddress, Data: podA.mac[:]}, {Type: 14, Data: make([]byte, 62)}}}
	in := ask.bytes(t)
	r.a.Do(func() { check(t, sendPartial(in, uint16(len(in)-8))) })
	if !r.grows(bpf.MetricsValue{}, events.WriteFailed) {
		t.Errorf("not counted; last event %+v", r.event())
	}
}
