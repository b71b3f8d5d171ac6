package tests

import (
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const ifBackbone = 106 // towards another node

// guardedGroup is the link group of devices whose packets need the mark of programs.
const guardedGroup = 0x5747

// The networks around the node: clients on one side, another node with a pod on the other.
var (
	nodeOut    = map[int]netip.Addr{4: netip.MustParseAddr("192.0.2.1"), 6: netip.MustParseAddr("2001:db8:1::1")}
	client     = map[int]netip.Addr{4: netip.MustParseAddr("192.0.2.9"), 6: netip.MustParseAddr("2001:db8:1::9")}
	nodeIn     = map[int]netip.Addr{4: netip.MustParseAddr("198.51.100.1"), 6: netip.MustParseAddr("2001:db8:2::1")}
	otherNode  = map[int]netip.Addr{4: netip.MustParseAddr("198.51.100.2"), 6: netip.MustParseAddr("2001:db8:2::2")}
	distantPod = map[int]netip.Addr{4: netip.MustParseAddr("10.2.0.5"), 6: netip.MustParseAddr("fd00:2::5")}
	balancer   = map[int]netip.Addr{4: netip.MustParseAddr("203.0.113.7"), 6: netip.MustParseAddr("2001:db8:7::7")}
)

const identityDistant = 0x4711

// lead adds a device to the devices towards the outside.
func (n *node) lead(ifindex uint32, addrs map[int]netip.Addr) {
	n.t.Helper()
	n.update(bpf.MapNetdevs, ifindex, bpf.Netdev{Ipv4: bpf.IPv4Word(addrs[4]), Ipv6: bpf.IPv6Bytes(addrs[6]), Flags: bpf.NetdevMasqueradeIPv4 | bpf.NetdevMasqueradeIPv6})
	for _, addr := range addrs {
		n.putHost(addr)
	}
}

// surround writes the networks around the node to the maps.
func (n *node) surround() {
	n.t.Helper()
	n.lead(ifUplink, nodeOut)
	n.lead(ifBackbone, nodeIn)
	for _, family := range families {
		n.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[family]), bpf.IpcacheEntry{Identity: identityDistant})
		n.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[family]), bpf.IpcacheEntry{Identity: 6})
	}
}

// serve writes a service with one backend, or none, to the maps. number is the id of the frontend, its slot and its backend.
func (n *node) serve(number uint32, addr netip.AddrPort, protocol loadbalancer.Protocol, flags int, backends ...netip.AddrPort) {
	n.t.Helper()
	s := bpf.Service{Id: number, First: number * 10, Count: uint32(len(backends)), Flags: bpf.ServiceOutside}
	s.Flags |= bpf.ServiceFlag(flags)
	for i, b := range backends {
		id := number*10 + uint32(i)
		row := bpf.Backend{Addr: bpf.NewAddrKey(b.Addr()), Port: wirePort(b.Port()), Protocol: uint8(protocol)}
		if far := []netip.Addr{distantPod[4], distantPod[6], otherNode[4], otherNode[6]}; !slices.Contains(far, b.Addr()) {
			row.Flags = bpf.BackendLocal
		}
		n.update(bpf.MapBackends, id, row)
		n.update(bpf.MapServiceSlots, number*10+uint32(i), id)
	}
	n.update(bpf.MapServices, bpf.NewServiceKey(loadbalancer.Address{Addr: addr.Addr(), Port: addr.Port(), Protocol: protocol}, bpf.ScopeExternal), s)
}

// surroundings are a real node between clients and another node.
type surroundings struct {
	*realNode
	clients, distant *testnet.Namespace
	spoofed          uint64 // number of packets that the rules of the node must drop
	direct           directMode
}

func newSurroundings(t *testing.T, links nodeLinks, constants ...map[string]uint32) *surroundings {
	t.Helper()
	s := &surroundings{realNode: newRealNode(t, constants...), clients: testnet.New(t), distant: testnet.New(t)}
	s.surround()
	for _, ns := range []*testnet.Namespace{s.host, s.clients, s.distant} {
		ns.Do(func() { check(t, withoutDAD()) })
	}
	s.host.Do(func() {
		check(t, s.wireOut("uplink", ifUplink, s.clients, nodeOut, links.uplink))
		check(t, s.wireOut("backbone", ifBackbone, s.distant, nodeIn, links.backbone))
	})
	s.host.Do(s.guard)
	s.clients.Do(func() { check(t, wireNeighbour(client, nodeOut)) })
	s.distant.Do(func() { check(t, wireNeighbour(otherNode, nodeIn)) })
	s.distant.Do(func() {
		lo, err := netlink.LinkByName("lo")
		check(t, err)
		check(t, netlink.LinkSetUp(lo))
		check(t, addAddrs(lo, distantPod[4], distantPod[6]))
	})
	s.host.Do(func() {
		for _, family := range families {
			gw := otherNode[family].AsSlice()
			check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: ifBackbone, Gw: gw}))
			check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: ifBackbone, Dst: hostNet(distantPod[family]), Gw: gw}))
		}
		check(t, waitUsable([]string{"uplink", "backbone"}, nodeOut[4], nodeOut[6], nodeIn[4], nodeIn[6]))
		check(t, waitLinkLocal("uplink", "backbone"))
	})
	t.Cleanup(func() {
		if dropped := s.guarded(); !t.Failed() && dropped.NodeSource.Packets != s.spoofed {
			t.Errorf("the rules of the node dropped %d packets with addresses of the node, want %d", dropped.NodeSource.Packets, s.spoofed)
		}
	})
	s.clients.Do(func() { check(t, waitUsable([]string{"eth0"}, client[4], client[6])) })
	s.distant.Do(func() {
		check(t, waitUsable([]string{"eth0"}, otherNode[4], otherNode[6], distantPod[4], distantPod[6]))
	})
	return s
}

// withoutDAD makes link-local addresses of later links usable immediately. Before that a neighbour with another source than an address of its link cannot
// resolve addresses, and drops its packets for the node after three seconds: duplicate address detection takes longer while many namespaces are created.
func withoutDAD() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
}

// guard installs the rules of the node: no outside host can use an address of the node or a pod, and no pod can bypass its programs.
func (s *surroundings) guard() {
	for _, name := range []string{"poda", "podb"} {
		link, err := netlink.LinkByName(name)
		check(s.t, err)
		check(s.t, netlink.LinkSetGroup(link, guardedGroup))
	}
	rule := nftguard.Rule{Groups: []uint32{guardedGroup}, Mark: 0xf00, Mask: 0xf00, NodeDevice: "waggle_net", PodDevice: "waggle_host"}
	check(s.t, nftguard.Install(rule))
}

// guarded returns the packets that the rules have dropped.
func (s *surroundings) guarded() (dropped nftguard.Dropped) {
	s.host.Do(func() {
		var err error
		dropped, err = nftguard.ReadDropped()
		check(s.t, err)
	})
	return dropped
}

// networkOf returns the network of a link's address.
func networkOf(addr netip.Addr) *net.IPNet {
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
}

func addNetworks(link netlink.Link, addrs map[int]netip.Addr) error {
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: networkOf(a)}
		if a.Is6() {
			addr.Flags = 2 // IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return nil
}

// addVeth creates a device towards the outside, and its peer in another namespace.
func (s *surroundings) addVeth(name string, index int, peer *testnet.Namespace) error {
	attributes := netlink.LinkAttrs{Name: name, Index: index}
	if index == ifUplink {
		attributes.HardwareAddr = uplinkMAC[:]
	}
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(peer.Handle())})
}

// wireOut creates a device towards the outside, with both programs.
func (s *surroundings) wireOut(name string, index int, peer *testnet.Namespace, addrs map[int]netip.Addr, kind linkKind) error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	add, in, out := s.addVeth, bpf.NetdevIngress, bpf.NetdevEgress
	if kind == tunnel {
		add, in, out = s.addTunnel, bpf.L3DevIngress, bpf.L3DevEgress
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	return each(
		func() error { return add(name, index, peer) },
		func() error { return keepResolving(name) },
		func() error { return addNetworks(link, addrs) },
		func() error { return handle.EnsureClsact(index, tc.Blocks{}) },
		func() error { return handle.ReplaceFilter(tc.Ingress(index), in, s.program(in).FD()) },
		func() error { return handle.ReplaceFilter(tc.Egress(index), out, s.program(out).FD()) },
		func() error { return setUp(name) },
		func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/forwarding", []byte("1"), 0) },
	)
}

// wireNeighbour configures the peer, whose gateway is the node.
func wireNeighbour(own, gateway map[int]netip.Addr) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := each(func() error { return keepResolving("eth0") }, func() error { return addNetworks(link, own) }, func() error { return setUp("eth0") }); err != nil {
		return err
	}
	for _, gw := range gateway {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("route by %s: %w", gw, err)
		}
	}
	return nil
}

// listenAt opens a UDP socket with a given port.
func listenAt(t *testing.T, ns *testnet.Namespace, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	ns.Do(func() {
		var err error
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		check(t, err)
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// state describes the node for a packet that did not arrive: the numbers of counted packets by reason, and the neighbours of each namespace.
func (s *surroundings) state() string {
	var out strings.Builder
	for reason := range events.Reason(255) {
		for _, direction := range []uint8{bpf.DirectionIngress, bpf.DirectionEgress} {
			if n := s.count(reason, direction).Packets; n > 0 {
				fmt.Fprintf(&out, "%s, direction %d: %d packets\n", reason, direction, n)
			}
		}
	}
	for name, ns := range map[string]*testnet.Namespace{"node": s.host, "pod a": s.a, "pod b": s.b, "clients": s.clients} {
		ns.Do(func() {
			neighbours, err := netlink.NeighList(0, netlink.FAMILY_ALL)
			fmt.Fprintf(&out, "neighbours of %s: %v %v\n", name, neighbours, err)
		})
	}
	return out.String()
}

// talk sends a datagram to an address of a server, and the server's reply back. It returns the client address that the server received.
func (s *surroundings) talk(t *testing.T, from *net.UDPConn, to netip.AddrPort, server *net.UDPConn, size int) netip.AddrPort {
	t.Helper()
	message := make([]byte, size)
	for i := range message {
		message[i] = byte(i)
	}
	buf := make([]byte, size+1)
	if _, err := from.WriteToUDPAddrPort(message, to); err != nil {
		t.Fatalf("send %s to %s: %v", portOf(from), to, err)
	}
	n, seen, err := limited(t, server).ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != string(message) {
		t.Fatalf("%d bytes of %d from %s to %s reached %s: %v; last event %+v\n%s", n, size, portOf(from), to, portOf(server), err, s.event(), s.state())
	}
	if _, err := server.WriteToUDPAddrPort(message, seen); err != nil {
		t.Fatalf("answer %s from %s: %v", seen, portOf(server), err)
	}
	n, peer, err := limited(t, from).ReadFromUDPAddrPort(buf)
	if err != nil || peer != to || string(buf[:n]) != string(message) {
		t.Fatalf("%d bytes of %d came back from %s, want %s: %v; last event %+v", n, size, peer, to, err, s.event())
	}
	return seen
}

// wirePort converts a port to network byte order.
func wirePort(port uint16) uint16 { return bits.ReverseBytes16(port) }
