package tests

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const (
	testIngressBlock = 0x57470101
	testEgressBlock  = 0x57470102
	testTimeout      = time.Minute // of one operation; only a lost packet reaches it
)

// realNode is a node with two pods in separate network namespaces, wired as the agent does: shared blocks on the pods' links, host_egress on waggle_host,
// routes for the pods through it.
type realNode struct {
	*node
	host, a, b *testnet.Namespace
}

func newRealNode(t *testing.T, constants ...map[string]uint32) *realNode {
	t.Helper()
	r := &realNode{host: testnet.New(t), a: testnet.New(t), b: testnet.New(t)}
	r.node = &node{t: t, constants: map[string]uint32{bpf.VariableVerdictEvents: 0}}
	for _, some := range constants {
		maps.Copy(r.constants, some)
	}
	r.load()
	r.put(podA)
	r.put(podB)
	r.putHost(gateway4)
	r.putHost(gateway6)
	r.host.Do(func() { check(t, r.wireHost()) })
	r.a.Do(func() { check(t, wirePod(podA)) })
	r.b.Do(func() { check(t, wirePod(podB)) })
	r.host.Do(func() { check(t, waitUsable([]string{"waggle_host", "poda", "podb"}, gateway4, gateway6)) })
	r.a.Do(func() { check(t, waitUsable([]string{"eth0"}, podA.ipv4, podA.ipv6)) })
	r.b.Do(func() { check(t, waitUsable([]string{"eth0"}, podB.ipv4, podB.ipv6)) })
	return r
}

func check(t testing.TB, err error) {
	if err != nil {
		t.Error(err)
	}
}

// each runs steps until the first failure.
func each(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *realNode) wireHost() error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, sysctl := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+sysctl, []byte("1"), 0); err != nil {
			return err
		}
	}
	host := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "waggle_host", Index: ifHost}, PeerName: "waggle_net"}
	blocks := tc.Blocks{Ingress: testIngressBlock, Egress: testEgressBlock}
	return each(
		func() error { return netlink.LinkAdd(host) },
		func() error { return netlink.LinkSetARPOff(host) },
		func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/waggle_net/disable_ipv6", []byte("1"), 0) }, // it sends no packets by itself
		func() error { return setUp("waggle_net") },
		func() error { return setUp("waggle_host") },
		func() error { return addAddrs(host, gateway4, gateway6) },
		func() error { return handle.EnsureClsact(ifHost, tc.Blocks{}) },
		func() error {
			return handle.ReplaceFilter(tc.Egress(ifHost), bpf.HostEgress, r.program(bpf.HostEgress).FD())
		},
		func() error { return r.wireLink(handle, "poda", podA, r.a, blocks) },
		func() error { return r.wireLink(handle, "podb", podB, r.b, blocks) },
	)
}

// wireLink creates a pod's link, attaches it, and only then sets it up.
func (r *realNode) wireLink(handle *tc.Handle, name string, p pod, peer *testnet.Namespace, blocks tc.Blocks) error {
	link := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, Index: int(p.ifindex), HardwareAddr: p.host[:]},
		PeerName:  "eth0", PeerHardwareAddr: p.mac[:], PeerNamespace: netlink.NsFd(peer.Handle()),
	}
	route := func(addr netip.Addr) error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: ifHost, Dst: hostNet(addr)})
	}
	return each(
		func() error { return netlink.LinkAdd(link) },
		func() error { return netlink.LinkSetARPOff(link) },
		func() error { return handle.EnsureClsact(int(p.ifindex), blocks) },
		func() error {
			return handle.ReplaceFilter(tc.Block(blocks.Ingress), bpf.PodEgress, r.program(bpf.PodEgress).FD())
		},
		func() error {
			return handle.ReplaceFilter(tc.Block(blocks.Egress), bpf.PodIngress, r.program(bpf.PodIngress).FD())
		},
		func() error { return setUp(name) },
		func() error { return route(p.ipv4) },
		func() error { return route(p.ipv6) },
	)
}

// wirePod configures the inside of a pod. There is no permanent neighbour: the programs must send the replies.
func wirePod(p pod) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return each(
		func() error { return keepResolving("eth0") },
		func() error { return setUp("eth0") },
		func() error { return addAddrs(link, p.ipv4, p.ipv6) },
		func() error { return addGateway(link, gateway4) },
		func() error { return addGateway(link, gateway6) },
	)
}

// keepResolving makes the kernel try for a minute to resolve the neighbours of a device. By default it drops their packets after three seconds, which a busy
// machine can take.
func keepResolving(device string) error {
	return each(
		func() error { return writeSetting("ipv4/neigh/"+device+"/mcast_solicit", "60") },
		func() error { return writeSetting("ipv6/neigh/"+device+"/mcast_solicit", "60") },
	)
}

func addGateway(link netlink.Link, gw netip.Addr) error {
	index := link.Attrs().Index
	err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: hostNet(gw), Scope: netlink.SCOPE_LINK})
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gw.AsSlice()})
}

func addAddrs(link netlink.Link, addrs ...netip.Addr) error {
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: hostNet(a)}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return nil
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// waitUsable returns when the kernel has detected the carriers of links and addresses are usable. Until then the kernel drops packets. One kernel worker
// handles this for all namespaces.
func waitUsable(links []string, addrs ...netip.Addr) error {
	for _, name := range links {
		if err := wait(name, func() (bool, error) {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return false, err
			}
			state, isTunnel := link.Attrs().OperState, len(link.Attrs().HardwareAddr) == 0
			return state == netlink.OperUp || isTunnel && state == netlink.OperUnknown, nil
		}); err != nil {
			return err
		}
	}
	for _, addr := range addrs {
		if err := wait(addr.String(), func() (bool, error) {
			routes, err := netlink.RouteGet(addr.AsSlice())
			return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// waitLinkLocal returns when links have usable link-local addresses. Until then the kernel sends no neighbour solicitations for pods, and drops their packets
// after three seconds.
func waitLinkLocal(links ...string) error {
	for _, name := range links {
		if err := wait(name+"'s link-local address", func() (bool, error) {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return false, err
			}
			addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
			usable := slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
				return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
			})
			return usable, err
		}); err != nil {
			return err
		}
	}
	return nil
}

func wait(what string, usable func() (bool, error)) error {
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		if ok, err := usable(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s cannot be used yet", what)
		}
	}
}

func hostNet(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}

// grows waits until the packet counter exceeds its previous value: the kernel may process a frame after the call that sent it. Forwarded packets include
// packets of the node's own kernel through waggle_host.
func (r *realNode) grows(before bpf.MetricsValue, reason events.Reason) bool {
	r.t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if r.count(reason, bpf.DirectionEgress).Packets > before.Packets {
			return true
		}
	}
	return false
}

// nextEvent waits for the report of a dropped packet; nil when there is none. The kernel may process a frame after the call that sent it, and reports a drop
// after it has counted it.
func (r *realNode) nextEvent() (event *events.Drop) {
	r.t.Helper()
	_ = wait("an event", func() (bool, error) {
		event = r.event()
		return event != nil, nil
	})
	return event
}

// listenUDP opens a socket inside a namespace.
func listenUDP(t *testing.T, ns *testnet.Namespace, addr netip.Addr) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	ns.Do(func() {
		var err error
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		check(t, err)
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// limited returns a connection whose next read has a time limit.
func limited[C net.Conn](t testing.TB, conn C) C {
	t.Helper()
	check(t, conn.SetReadDeadline(time.Now().Add(testTimeout)))
	return conn
}

func portOf(conn *net.UDPConn) netip.AddrPort { return conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// exchange sends a datagram from one socket to another and its echo back.
func (r *realNode) exchange(t *testing.T, from, to *net.UDPConn, size int) {
	t.Helper()
	message := make([]byte, size)
	for i := range message {
		message[i] = byte(i)
	}
	buf := make([]byte, size+1)
	for _, leg := range []struct{ from, to *net.UDPConn }{{from, to}, {to, from}} {
		if _, err := leg.from.WriteToUDPAddrPort(message, portOf(leg.to)); err != nil {
			t.Fatalf("send %s to %s: %v", portOf(leg.from), portOf(leg.to), err)
		}
		n, peer, err := limited(t, leg.to).ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("receive %d bytes at %s from %s: %v; last event %+v", size, portOf(leg.to), portOf(leg.from), err, r.event())
		}
		if peer != portOf(leg.from) || string(buf[:n]) != string(message) {
			t.Fatalf("received %d bytes from %s, want %d from %s", n, peer, size, portOf(leg.from))
		}
	}
}
