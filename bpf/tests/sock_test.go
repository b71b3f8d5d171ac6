package tests

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// sockKinds are the kinds of sockets: of each family, and IPv6 sockets that use IPv4.
var sockKinds = []struct {
	name           string
	socket, family int // family of the socket, and of the addresses
	service, other string
}{
	{"IPv4", unix.AF_INET, 4, service4, other4},
	{"IPv6", unix.AF_INET6, 6, service6, other6},
	{"IPv4 mapped", unix.AF_INET6, 4, service4, other4},
}

// A TCP connection to a service goes to a backend, and the process sees the service's address.
func TestPrivilegedSock_TCP(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	for i, k := range sockKinds {
		server, at := bound(t, unix.SOCK_STREAM, netip.MustParseAddr(backendAddrs[k.family][0]))
		service := address(k.service, uint16(80+i), loadbalancer.TCP)
		n.backend(uint32(1+i), withProtocol(at, loadbalancer.TCP))
		n.service(service, bpf.Service{Id: uint32(1 + i)}, uint32(1+i))

		client := rawSocket(t, k.socket, unix.SOCK_STREAM)
		if err := unix.Connect(client, sockaddr(k.socket, asWired(service))); err != nil {
			t.Fatalf("%s: connect to a service: %v", k.name, err)
		}
		if got := peername(t, client); got != asWired(service) {
			t.Errorf("%s: getpeername is %s, want %s", k.name, got, service)
		}
		var accepted int
		var from unix.Sockaddr
		if err := uninterrupted(func() (err error) { accepted, from, err = unix.Accept(server); return err }); err != nil {
			t.Fatalf("%s: accept: %v", k.name, err)
		}
		defer unix.Close(accepted)
		own, err := unix.Getsockname(client)
		if err != nil {
			t.Fatal(err)
		}
		if addrPort(t, own) != addrPort(t, from) {
			t.Errorf("%s: the backend sees %s, the client is %s", k.name, addrPort(t, from), addrPort(t, own))
		}
		if got := peername(t, accepted); got != addrPort(t, own) {
			t.Errorf("%s: the server's getpeername is %s, want %s", k.name, got, addrPort(t, own))
		}

		// The backend itself can be reached too, and keeps its address.
		direct := rawSocket(t, k.socket, unix.SOCK_STREAM)
		if err := unix.Connect(direct, sockaddr(k.socket, at)); err != nil {
			t.Fatalf("%s: connect to a backend: %v", k.name, err)
		}
		if got := peername(t, direct); got != at {
			t.Errorf("%s: getpeername is %s, want the backend %s", k.name, got, at)
		}
	}
}

// A port or a protocol that the service does not have is not translated.
func TestPrivilegedSock_OtherPortAndProtocol(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	_, at := bound(t, unix.SOCK_STREAM, netip.MustParseAddr("127.0.1.1"))
	n.backend(1, withProtocol(at, loadbalancer.TCP))
	n.service(address("127.0.9.9", 80, loadbalancer.TCP), bpf.Service{Id: 1}, 1)
	client := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM)
	if err := unix.Connect(client, sockaddr(unix.AF_INET, netip.MustParseAddrPort("127.0.9.9:81"))); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("another port: %v", err)
	}
	udp := rawSocket(t, unix.AF_INET, unix.SOCK_DGRAM)
	other := netip.MustParseAddrPort("127.0.9.9:80")
	if err := unix.Connect(udp, sockaddr(unix.AF_INET, other)); err != nil {
		t.Fatal(err)
	}
	if got := peername(t, udp); got != other {
		t.Errorf("UDP to a TCP service: %s", got)
	}
}

// Connections to a service without backends fail immediately, for TCP and UDP.
func TestPrivilegedSock_NoBackends(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	for _, k := range sockKinds {
		for empty, want := range map[bpf.Service]error{{Id: 1}: unix.ECONNREFUSED, {Id: 1, Flags: bpf.ServiceDrop}: unix.EPERM} {
			for _, protocol := range []loadbalancer.Protocol{loadbalancer.TCP, loadbalancer.UDP} {
				n.service(address(k.service, 80, protocol), empty)
			}
			to := sockaddr(k.socket, asWired(address(k.service, 80, loadbalancer.TCP)))
			tcp, udp := rawSocket(t, k.socket, unix.SOCK_STREAM), rawSocket(t, k.socket, unix.SOCK_DGRAM)
			if err := unix.Connect(tcp, to); !errors.Is(err, want) {
				t.Errorf("%s: connect TCP: %v, want %v", k.name, err, want)
			}
			if err := unix.Connect(udp, to); !errors.Is(err, want) {
				t.Errorf("%s: connect UDP: %v, want %v", k.name, err, want)
			}
			if err := unix.Sendto(udp, []byte("question"), 0, to); !errors.Is(err, want) {
				t.Errorf("%s: send: %v, want %v", k.name, err, want)
			}
		}
	}
	n.wantRejected(events.NoBackend, bpf.DirectionEgress, len(sockKinds)*2*3)
}

// wantRejected checks the number of counted rejected calls.
func (n *sockNode) wantRejected(reason events.Reason, direction uint8, calls int) {
	n.t.Helper()
	if got := counted(n.t, n.coll.Maps[bpf.MapMetrics], reason, direction); got != (bpf.MetricsValue{Packets: uint64(calls)}) {
		n.t.Errorf("counted for %q: %+v, want %d calls", reason, got, calls)
	}
}

// Packets to a service without backends that must be dropped are left to the programs on the links of pods: no route exists in this test.
func TestPrivilegedSock_NoBackendsDropInAPod(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	n.service(address(service4, 80, loadbalancer.TCP), bpf.Service{Id: 1, Flags: bpf.ServiceDrop})
	inPod(t, n, testnet.New(t), func() {
		err := unix.Connect(rawSocket(t, unix.AF_INET, unix.SOCK_STREAM), sockaddr(unix.AF_INET, netip.MustParseAddrPort(service4+":80")))
		if !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("connect: %v, want that it was tried", err)
		}
	})
	n.wantRejected(events.NoBackend, bpf.DirectionEgress, 0)
}

// Clients on the node use the internal backends if the two scopes differ.
func TestPrivilegedSock_TwoScopes(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	p := n.udp(0)
	n.service(p.service, bpf.Service{Id: 1, Flags: bpf.ServiceTwoScopes})
	n.put(bpf.MapServices, bpf.NewServiceKey(p.service, bpf.ScopeInternal), bpf.Service{Id: 1, Flags: bpf.ServiceTwoScopes, First: 0, Count: 1})
	sendTo(t, p.client, p.family, asWired(p.service))
	echoDatagram(t, p.server)
	if got := heard(t, p.client); got != asWired(p.service) {
		t.Errorf("the answer is from %s", got)
	}
}

// 127.0.0.1 of a pod is not the node's, and with --bpf-lb-sock-hostns-only sockets of pods are not translated.
func TestPrivilegedSock_Pods(t *testing.T) {
	t.Parallel()
	for _, hostOnly := range []uint32{0, 1} {
		t.Run(fmt.Sprint(hostOnly), func(t *testing.T) {
			n := newSockNode(t, map[string]any{bpf.VariableSockHostOnly: hostOnly})
			pod := testnet.New(t)
			loopback, cluster := address("127.0.0.1", 30080, loadbalancer.UDP), address(service4, 53, loadbalancer.UDP)
			n.backend(1, address("127.0.1.1", 5353, loadbalancer.UDP))
			n.service(loopback, bpf.Service{Id: 1, Flags: bpf.ServiceLoopback | bpf.ServiceNodePort}, 1)
			n.service(cluster, bpf.Service{Id: 2}, 1)
			translated := func(to loadbalancer.Address) bool {
				fd := rawSocket(t, unix.AF_INET, unix.SOCK_DGRAM)
				if err := unix.Connect(fd, sockaddr(unix.AF_INET, asWired(to))); err != nil {
					return false // no route to an address of a service
				}
				return n.connected(fd)
			}
			if !translated(loopback) || !translated(cluster) {
				t.Error("a socket of the node is not translated")
			}
			inPod(t, n, pod, func() {
				if translated(loopback) {
					t.Error("the loopback address of a pod is taken for the node's")
				}
				if got := translated(cluster); got != (hostOnly == 0) {
					t.Errorf("a socket of a pod is translated: %v", got)
				}
			})
		})
	}
}

// connected reports whether the map has an entry for a socket.
func (n *sockNode) connected(fd int) bool {
	value, err := n.coll.Maps[bpf.MapSockConnected].LookupBytes(int32(fd))
	if err != nil {
		n.t.Error(err)
	}
	return value != nil
}

// A process cannot bind the address of a service, and can bind every other address.
func TestPrivilegedSock_BindProtection(t *testing.T) {
	t.Parallel()
	bind := func(t testing.TB, family int, at string) error {
		return unix.Bind(rawSocket(t, family, unix.SOCK_STREAM), sockaddr(family, netip.MustParseAddrPort(at)))
	}
	for _, protected := range []uint32{1, 0} {
		t.Run(fmt.Sprint(protected), func(t *testing.T) {
			n := newSockNode(t, map[string]any{bpf.VariableSockBindProtection: protected})
			for _, addr := range []string{"127.0.0.1", "::1"} {
				n.service(address(addr, 30080, loadbalancer.TCP), bpf.Service{Id: 1, Flags: bpf.ServiceLoopback})
			}
			for _, addr := range []string{"127.0.1.1", "fd00:1::1"} {
				n.service(address(addr, 30080, loadbalancer.TCP), bpf.Service{Id: 1, Flags: bpf.ServiceNodePort})
			}
			n.service(address("127.0.1.2", 30080, loadbalancer.TCP), bpf.Service{Id: 2})
			var want error
			if protected == 1 {
				want = unix.EADDRINUSE
			}
			for _, c := range []struct {
				family int
				at     string
			}{{unix.AF_INET, "0.0.0.0:30080"}, {unix.AF_INET, "127.0.0.1:30080"}, {unix.AF_INET, "127.0.1.1:30080"},
				{unix.AF_INET6, "[::]:30080"}, {unix.AF_INET6, "[::1]:30080"}, {unix.AF_INET6, "[fd00:1::1]:30080"},
				{unix.AF_INET6, "127.0.0.1:30080"}, {unix.AF_INET6, "0.0.0.0:30080"}} {
				t.Run(c.at, func(t *testing.T) {
					n.ns.Enter()
					n.group.Enter(t)
					if err := bind(t, c.family, c.at); !errors.Is(err, want) {
						t.Errorf("bind %s: %v, want %v", c.at, err, want)
					}
				})
			}
			n.wantRejected(events.ServicePort, bpf.DirectionUnknown, 8*int(protected))
			for _, at := range []string{"0.0.0.0:30081", "127.0.1.2:30080", "127.0.1.1:0"} {
				if err := bind(t, unix.AF_INET, at); err != nil {
					t.Errorf("bind %s: %v", at, err)
				}
			}
			if err := unix.Bind(rawSocket(t, unix.AF_INET, unix.SOCK_DGRAM), sockaddr(unix.AF_INET, netip.MustParseAddrPort("0.0.0.0:30080"))); err != nil {
				t.Errorf("bind the UDP port: %v", err)
			}
			inPod(t, n, testnet.New(t), func() {
				if err := bind(t, unix.AF_INET, "0.0.0.0:30080"); err != nil {
					t.Errorf("a pod cannot bind its own port: %v", err)
				}
			})
		})
	}
}

// Closed sockets leave no entries, however many there were.
func TestPrivilegedSock_ManySockets(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	_, at := bound(t, unix.SOCK_STREAM, netip.MustParseAddr("127.0.1.1"))
	n.backend(1, withProtocol(at, loadbalancer.UDP))
	service := address(service4, 53, loadbalancer.UDP)
	n.service(service, bpf.Service{Id: 1}, 1)
	for range 20_000 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err == nil {
			err = unix.Connect(fd, sockaddr(unix.AF_INET, asWired(service)))
		}
		if err == nil {
			err = unix.Sendto(fd, nil, 0, sockaddr(unix.AF_INET, asWired(service)))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := peername(t, fd); got != asWired(service) {
			t.Fatalf("getpeername is %s", got)
		}
		_ = unix.Close(fd)
	}
}
