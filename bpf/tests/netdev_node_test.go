package tests

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// nodeSends sends a packet of the node itself through the egress of the uplink.
func (n *node) nodeSends(packet []byte) outcome {
	n.t.Helper()
	return n.runSkb(bpf.NetdevEgress, skBuff{Ifindex: ifUplink}, packet)
}

// Replies of the node create no entries of translated flows: otherwise one host that pings with every identifier, or connects to closed ports, would fill the
// table for all pods.
func TestPrivilegedNetdevEgress_RepliesOfNode_CreateNoEntry(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		for i := range uint16(1000) {
			own, requester := on(nodeOut[family], 32768+i), on(client[family], 4000+i)
			for what, packet := range map[string][]byte{
				"echo reply":             going(on(nodeOut[family], 0), on(client[family], 0)).echo(t, true, 32768+i),
				"reset":                  going(own, requester).tcp(t, "RA"),
				"SYN-ACK":                going(own, requester).tcp(t, "SA"),
				"segment":                going(own, requester).tcp(t, "A"),
				"datagram":               going(own, requester).bytes(t),
				"datagram of the tunnel": going(own, on(otherNode[family], 8472)).bytes(t),
			} {
				if got := n.nodeSends(packet); got.action != actUnspec || string(got.packet) != string(packet) {
					t.Fatalf("%s: action %d, or it was changed", what, int32(got.action))
				}
			}
		}
		n.wantNat(family, 0)
	})
}

// A flow of the node whose replies would match the entry of a pod's flow gets another port.
func TestPrivilegedNetdevEgress_TheNodeAvoidsPodPorts(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		pod, own, server := on(podA.addr(family), 40000), on(nodeOut[family], 40000), on(client[family], 53)
		for name, c := range map[string]struct{ first, answer func(f flow) []byte }{
			"TCP": {func(f flow) []byte { return f.tcp(t, "S") }, func(f flow) []byte { return f.tcp(t, "SA") }},
			"UDP": {func(f flow) []byte { return f.bytes(t) }, func(f flow) []byte { return f.bytes(t) }},
		} {
			n.wantPacket(n.sendFrom(podA, c.first(going(pod, server))), actUnspec, c.first(going(own, server)))
			got := n.nodeSends(c.first(going(own, server)))
			if got.action != actUnspec || string(got.packet) == string(c.first(going(own, server))) {
				t.Fatalf("%s: the node keeps the pod's port: action %d", name, int32(got.action))
			}
			port := uint16(got.packet[l4At(family)])<<8 | uint16(got.packet[l4At(family)+1])
			n.wantPacket(got, actUnspec, c.first(going(on(own.Addr(), port), server)))
			// Each gets its own replies.
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, c.answer(coming(server, own))), actUnspec, c.answer(coming(server, pod)))
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, c.answer(coming(server, on(own.Addr(), port)))), actUnspec, c.answer(coming(server, own)))
		}
	})
}

func l4At(family int) int {
	if family == 6 {
		return 14 + 40
	}
	return 14 + 20
}

// A pod's flow never gets a port that a socket of the node uses: a listener, a connection or a socket for datagrams.
func TestPrivilegedNetdevEgress_PodsAvoidSocketPorts(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		const listener, datagrams, unused = 41000, 41001, 41002
		listenOnAll(t, n.ns, listener)
		listenAt(t, n.ns, netip.AddrPortFrom(netip.IPv6Unspecified(), datagrams)) // of both families, as servers open them
		for name, c := range map[string]struct {
			port   uint16
			packet func(f flow) []byte
			keeps  bool
		}{
			"TCP from a listener's port":       {listener, func(f flow) []byte { return f.tcp(t, "S") }, false},
			"UDP from a socket's port":         {datagrams, func(f flow) []byte { return f.bytes(t) }, false},
			"UDP from a port of TCP only":      {listener, func(f flow) []byte { return f.bytes(t) }, true},
			"TCP from a port of UDP only":      {datagrams, func(f flow) []byte { return f.tcp(t, "S") }, true},
			"TCP from a port without a socket": {unused, func(f flow) []byte { return f.tcp(t, "S") }, true},
			"UDP from a port without a socket": {unused, func(f flow) []byte { return f.bytes(t) }, true},
		} {
			server := on(client[family], 53)
			got := n.sendFrom(podA, c.packet(going(on(podA.addr(family), c.port), server)))
			same := string(got.packet) == string(c.packet(going(on(nodeOut[family], c.port), server)))
			if got.action != actUnspec || same != c.keeps {
				t.Errorf("%s: action %d, keeps the port: %v, want %v", name, int32(got.action), same, c.keeps)
			}
		}
	})
}

// listenOnAll opens a listener on all addresses of a namespace.
func listenOnAll(t *testing.T, ns *testnet.Namespace, port uint16) {
	t.Helper()
	ns.Do(func() {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: int(port)})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = l.Close() })
	})
}

// A process of the node whose source port is the port of a service gets the replies to it; the service still gets its requests.
func TestPrivilegedNetdevIngress_RepliesAreNoRequestsOfAService(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		const port = 40000
		own, peer, other := on(nodeOut[family], port), on(client[family], 53), on(client[family], 4000)
		backend := on(podA.addr(family), backendPort)
		for i, protocol := range []loadbalancer.Protocol{loadbalancer.TCP, loadbalancer.UDP} {
			n.serve(40+uint32(i), own, protocol, 0, backend)
		}
		passes := func(what string, packet []byte) {
			t.Helper()
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, packet), actUnspec, packet)
			if t.Failed() {
				t.Fatal(what)
			}
		}
		serves := func(from netip.AddrPort, packet func(f flow) []byte) {
			t.Helper()
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, packet(coming(from, own))), actUnspec, packet(coming(from, backend)))
		}
		syn := func(f flow) []byte { return f.tcp(t, "S") }
		datagram := func(f flow) []byte { return f.bytes(t) }

		n.ns.Do(func() {
			check(t, setUp("uplinkp"))
			check(t, setUp("uplink"))
			link, err := netlink.LinkByName("uplink")
			check(t, err)
			check(t, addNetworks(link, map[int]netip.Addr{family: own.Addr()}))
			check(t, waitUsable([]string{"uplink"}, own.Addr()))
			// Without a neighbour, the kernel ends the connection after 3 s: the host is unreachable.
			check(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: peer.Addr().AsSlice(), HardwareAddr: networkMAC[:]}))
			connectingSocket(t, map[int]int{4: unix.AF_INET, 6: unix.AF_INET6}[family], own, peer)
		})
		passes("a SYN-ACK for a process", coming(peer, own).tcp(t, "SA"))
		passes("a reset for a process", coming(peer, own).tcp(t, "RA"))
		serves(other, syn)

		var connected *net.UDPConn
		n.ns.Do(func() {
			var err error
			connected, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(own), net.UDPAddrFromAddrPort(peer))
			check(t, err)
		})
		passes("a datagram for a connected socket", coming(peer, own).bytes(t))
		serves(other, datagram)
		check(t, connected.Close())

		// An unconnected socket receives from any peer: its sent packets distinguish replies from requests.
		listenAt(t, n.ns, own)
		third := on(client[family], 4001)
		serves(third, datagram)
		n.nodeSends(going(own, peer).bytes(t))
		n.nodeSends(going(own, peer).bytes(t))
		passes("a datagram for a socket that sent one", coming(peer, own).bytes(t))
		serves(on(client[family], 4002), datagram)
	})
}

// connectingSocket starts a TCP connection that only sends a SYN; the node of these tests has no peer.
func connectingSocket(t *testing.T, family int, own, peer netip.AddrPort) {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	check(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 127)) // by default the kernel ends the connection after about a minute
	check(t, unix.Bind(fd, sockaddr(family, own)))
	if err := unix.Connect(fd, sockaddr(family, peer)); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatalf("connect %s to %s: %v", own, peer, err)
	}
}
