package tests

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// sockSizes are small sizes of the maps of socket programs. An LRU map needs 128 entries for each CPU.
var sockSizes = map[string]uint32{bpf.MapServices: 64, bpf.MapBackends: 64, bpf.MapServiceSlots: 1024, bpf.MapAffinityMembers: 64}

// sockNode is a cgroup with the attached programs and this test's thread, in a network namespace that acts as the node's own.
type sockNode struct {
	t     testing.TB
	group *testnet.Cgroup
	ns    *testnet.Namespace
	coll  *ebpf.Collection
	links map[string]link.Link
	slots uint32 // number of used slots

	messages uint64 // number of the last message of arrivesAt
}

// Addresses of backends are on the loopback device of the node; no device has the addresses of services.
const (
	service4, service6 = "10.96.0.10", "fd00:96::10"
	other4, other6     = "10.96.0.11", "fd00:96::11"
)

var backendAddrs = map[int][]string{4: {"127.0.1.1", "127.0.1.2", "127.0.1.3"}, 6: {"fd00:1::1", "fd00:1::2", "fd00:1::3"}}

func newSockNode(t testing.TB, constants map[string]any) *sockNode {
	t.Helper()
	n := &sockNode{t: t, ns: testnet.New(t), group: testnet.NewCgroup(t), links: map[string]link.Link{}}
	n.ns.Enter()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	var local []netip.Addr
	for _, a := range backendAddrs[6] {
		local = append(local, netip.MustParseAddr(a))
		addr, err := netlink.ParseAddr(a + "/128 nodad")
		if err == nil {
			addr.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(lo, addr)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := waitUsable(nil, local...); err != nil { // until then packets to an address are forwarded, and lost
		t.Fatal(err)
	}
	spec, err := bpf.Load(bpf.Sock)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range spec.Maps {
		if size := sockSizes[name]; size != 0 {
			m.MaxEntries = size
		} else if m.MaxEntries > 1024 {
			m.MaxEntries = 1024
		}
	}
	values := map[string]any{bpf.VariableSockHostNetns: netnsCookie(t)}
	for name, value := range constants {
		values[name] = value
	}
	for name, value := range values {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	if n.coll, err = ebpf.NewCollection(spec); err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			t.Fatalf("%+v", verifier)
		}
		t.Fatal(err)
	}
	t.Cleanup(n.coll.Close)
	for _, name := range bpf.SockPrograms() {
		n.attach(name, spec.Programs[name].AttachType)
	}
	n.group.Enter(t)
	return n
}

func (n *sockNode) attach(name string, hook ebpf.AttachType) {
	n.t.Helper()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: n.group.Path, Attach: hook, Program: n.coll.Programs[name]})
	if err != nil {
		n.t.Fatalf("attach %s: %v", name, err)
	}
	n.t.Cleanup(func() { _ = l.Close() })
	n.links[name] = l
}

func (n *sockNode) put(m string, key, value any) {
	n.t.Helper()
	if err := n.coll.Maps[m].Put(key, value); err != nil {
		n.t.Fatalf("put into %s: %v", m, err)
	}
}

// address parses an address such as "10.96.0.10" and adds a port.
func address(addr string, port uint16, p loadbalancer.Protocol) loadbalancer.Address {
	return loadbalancer.Address{Addr: netip.MustParseAddr(addr), Port: port, Protocol: p}
}

// backend writes a backend, and forget removes it.
func (n *sockNode) backend(id uint32, at loadbalancer.Address) {
	n.put(bpf.MapBackends, id, bpf.Backend{Addr: bpf.NewAddrKey(at.Addr), Port: wirePort(at.Port), Protocol: uint8(at.Protocol), Flags: bpf.BackendLocal})
}

func (n *sockNode) removeBackend(id uint32) {
	n.t.Helper()
	if err := n.coll.Maps[bpf.MapBackends].Delete(id); err != nil {
		n.t.Fatal(err)
	}
}

// service writes a frontend with new slots, as the agent does when backends change.
func (n *sockNode) service(at loadbalancer.Address, s bpf.Service, backends ...uint32) {
	n.t.Helper()
	s.First, s.Count = n.slots, uint32(len(backends))
	for _, id := range backends {
		n.put(bpf.MapServiceSlots, n.slots, id)
		n.slots++
		if s.Affinity != 0 {
			n.put(bpf.MapAffinityMembers, bpf.AffinityMember{Service: s.Id, Backend: id}, uint32(1))
		}
	}
	n.put(bpf.MapServices, bpf.NewServiceKey(at, bpf.ScopeExternal), s)
}

func netnsCookie(t testing.TB) uint64 {
	t.Helper()
	fd := rawSocket(t, unix.AF_INET, unix.SOCK_DGRAM)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// uninterrupted repeats a system call that a signal has interrupted. The kernel does not restart calls that wait on a socket with a timeout, and poll(2)
// (signal(7)), and Go's scheduler sends signals on a busy machine.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// rawSocket is a socket of this thread with a receive timeout.
func rawSocket(t testing.TB, family, kind int) int {
	t.Helper()
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	timeout := unix.NsecToTimeval(testTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	return fd
}

// sockaddr returns an address for a socket of this family; an IPv6 socket uses mapped IPv4 addresses.
func sockaddr(family int, at netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
}

// addrPort is the inverse of sockaddr.
func addrPort(t testing.TB, sa unix.Sockaddr) netip.AddrPort {
	t.Helper()
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	t.Fatalf("no address: %v", sa)
	return netip.AddrPort{}
}

// bound returns a socket bound to an address, and its port.
func bound(t testing.TB, kind int, addr netip.Addr) (fd int, at netip.AddrPort) {
	t.Helper()
	family := unix.AF_INET6
	if addr.Is4() {
		family = unix.AF_INET
	}
	fd = rawSocket(t, family, kind)
	if err := unix.Bind(fd, sockaddr(family, netip.AddrPortFrom(addr, 0))); err != nil {
		t.Fatalf("bind %s: %v", addr, err)
	}
	if kind == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 128); err != nil {
			t.Fatal(err)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, addrPort(t, name)
}

// peername returns the peer address that a socket reports.
func peername(t testing.TB, fd int) netip.AddrPort {
	t.Helper()
	name, err := unix.Getpeername(fd)
	if err != nil {
		t.Fatalf("getpeername: %v", err)
	}
	return addrPort(t, name)
}

// asWired returns the address without its protocol.
func asWired(a loadbalancer.Address) netip.AddrPort { return netip.AddrPortFrom(a.Addr, a.Port) }

// withProtocol is the inverse of asWired.
func withProtocol(a netip.AddrPort, p loadbalancer.Protocol) loadbalancer.Address {
	return loadbalancer.Address{Addr: a.Addr(), Port: a.Port(), Protocol: p}
}
