package tests

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// udpPair is a client and a backend behind a service, for each kind of socket.
type udpPair struct {
	client, server int
	family         int // of the client
	service        loadbalancer.Address
	backend        netip.AddrPort
}

func (n *sockNode) udp(i int) udpPair {
	n.t.Helper()
	k := sockKinds[i]
	p := udpPair{family: k.socket, client: rawSocket(n.t, k.socket, unix.SOCK_DGRAM), service: address(k.service, uint16(53+i), loadbalancer.UDP)}
	p.server, p.backend = bound(n.t, unix.SOCK_DGRAM, netip.MustParseAddr(backendAddrs[k.family][0]))
	n.backend(uint32(1+i), withProtocol(p.backend, loadbalancer.UDP))
	n.service(p.service, bpf.Service{Id: uint32(1 + i)}, uint32(1+i))
	return p
}

// echoDatagram makes a server send back a received datagram.
func echoDatagram(t testing.TB, server int) {
	t.Helper()
	b := make([]byte, 64)
	var size int
	var from unix.Sockaddr
	err := uninterrupted(func() (err error) { size, from, err = unix.Recvfrom(server, b, 0); return err })
	if err == nil {
		err = unix.Sendto(server, b[:size], 0, from)
	}
	if err != nil {
		t.Fatalf("answer: %v", err)
	}
}

// heard returns the sender of the next datagram.
func heard(t testing.TB, fd int) netip.AddrPort {
	t.Helper()
	b := make([]byte, 64)
	var from unix.Sockaddr
	if err := uninterrupted(func() (err error) { _, from, err = unix.Recvfrom(fd, b, 0); return err }); err != nil {
		t.Fatalf("receive: %v", err)
	}
	return addrPort(t, from)
}

func sendTo(t testing.TB, fd, family int, to netip.AddrPort) {
	t.Helper()
	sendMessage(t, fd, family, to, []byte("question"))
}

func sendMessage(t testing.TB, fd, family int, to netip.AddrPort, message []byte) {
	t.Helper()
	if err := unix.Sendto(fd, message, 0, sockaddr(family, to)); err != nil {
		t.Fatalf("send to %s: %v", to, err)
	}
}

func TestPrivilegedSock_ConnectedUDP(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	for i, k := range sockKinds {
		p := n.udp(i)
		if err := unix.Connect(p.client, sockaddr(p.family, asWired(p.service))); err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		if got := peername(t, p.client); got != asWired(p.service) {
			t.Errorf("%s: getpeername is %s, want %s", k.name, got, p.service)
		}
		if _, err := unix.Write(p.client, []byte("question")); err != nil {
			t.Fatal(err)
		}
		echoDatagram(t, p.server)
		if got := heard(t, p.client); got != asWired(p.service) {
			t.Errorf("%s: the answer is from %s, want %s", k.name, got, p.service)
		}
		// A socket that connects to the backend itself is connected to the backend.
		if err := unix.Connect(p.client, sockaddr(p.family, p.backend)); err != nil {
			t.Fatal(err)
		}
		if got := peername(t, p.client); got != p.backend {
			t.Errorf("%s: connected anew, getpeername is %s, want %s", k.name, got, p.backend)
		}
	}
}

func TestPrivilegedSock_UnconnectedUDP(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	for i, k := range sockKinds {
		p := n.udp(i)
		for range 2 {
			sendTo(t, p.client, p.family, asWired(p.service))
			echoDatagram(t, p.server)
			if got := heard(t, p.client); got != asWired(p.service) {
				t.Errorf("%s: the answer is from %s, want %s", k.name, got, p.service)
			}
		}
		// A client that sends to the backend receives from the backend.
		sendTo(t, p.client, p.family, p.backend)
		echoDatagram(t, p.server)
		if got := heard(t, p.client); got != p.backend {
			t.Errorf("%s: the answer is from %s, want the backend %s", k.name, got, p.backend)
		}
	}
}

// One socket sends to many services in turn; each reply has the address of the requested service.
func TestPrivilegedSock_ManyServicesOfOneSocket(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	for _, k := range sockKinds {
		client := rawSocket(t, k.socket, unix.SOCK_DGRAM)
		for i := range uint32(12) {
			server, at := bound(t, unix.SOCK_DGRAM, netip.MustParseAddr(backendAddrs[k.family][i%3]))
			n.backend(1+i, withProtocol(at, loadbalancer.UDP))
			service := address(k.service, uint16(1000+i), loadbalancer.UDP)
			n.service(service, bpf.Service{Id: 1 + i}, 1+i)
			sendTo(t, client, k.socket, asWired(service))
			echoDatagram(t, server)
			if got := heard(t, client); got != asWired(service) {
				t.Errorf("%s, service %d: the answer is from %s, want %s", k.name, i, got, service)
			}
		}
	}
}

// Two services have the same backend: the reply has the address of the last requested one.
func TestPrivilegedSock_OneBackendOfTwoServices(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	p := n.udp(0)
	other := address(other4, 53, loadbalancer.UDP)
	n.service(other, bpf.Service{Id: 9}, 1)
	for _, to := range []loadbalancer.Address{p.service, other, p.service} {
		sendTo(t, p.client, p.family, asWired(to))
		echoDatagram(t, p.server)
		if got := heard(t, p.client); got != asWired(to) {
			t.Errorf("the answer is from %s, want %s", got, to)
		}
	}
}

// backendsOf starts three UDP servers of a family and writes them as backends 1 to 3.
func (n *sockNode) backendsOf(family int) (servers []int) {
	for i, addr := range backendAddrs[family] {
		server, at := bound(n.t, unix.SOCK_DGRAM, netip.MustParseAddr(addr))
		n.backend(uint32(1+i), withProtocol(at, loadbalancer.UDP))
		servers = append(servers, server)
	}
	return servers
}

// arrivesAt calls send with a numbered message until a server receives the message, and returns the server. The kernel drops packets on a loopback device
// while other tests fill the queue of the CPU (net.core.netdev_max_backlog). A message of a previous call that arrives late is ignored.
func (n *sockNode) arrivesAt(servers []int, send func(message []byte)) int {
	n.t.Helper()
	const pause = 3 * time.Second // until the next message
	var fds []unix.PollFd
	for _, s := range servers {
		fds = append(fds, unix.PollFd{Fd: int32(s), Events: unix.POLLIN})
	}
	previous := n.messages
	for range int(testTimeout / pause) {
		n.messages++
		send(binary.NativeEndian.AppendUint64(nil, n.messages))
		for ready := 1; ready > 0; {
			if err := uninterrupted(func() (err error) { ready, err = unix.Poll(fds, int(pause/time.Millisecond)); return err }); err != nil {
				n.t.Fatal(err)
			}
			for i, fd := range fds {
				if fd.Revents&unix.POLLIN != 0 && receiveNumber(n.t, servers[i]) > previous {
					return i
				}
			}
		}
	}
	n.t.Fatal("no backend received a message")
	return 0
}

// receiveNumber returns the number of the next message.
func receiveNumber(t testing.TB, server int) uint64 {
	t.Helper()
	b := make([]byte, 8)
	var size int
	if err := uninterrupted(func() (err error) { size, _, err = unix.Recvfrom(server, b, 0); return err }); err != nil || size != len(b) {
		t.Fatalf("receive %d bytes: %v", size, err)
	}
	return binary.NativeEndian.Uint64(b)
}

// An unconnected socket keeps its backend as long as the backend belongs to the service.
func TestPrivilegedSock_BackendsChangeUnderAnUnconnectedSocket(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	for _, k := range sockKinds {
		servers := n.backendsOf(k.family)
		service := address(k.service, 53, loadbalancer.UDP)
		n.service(service, bpf.Service{Id: 1}, 1, 2, 3)
		client := rawSocket(t, k.socket, unix.SOCK_DGRAM)
		send := func() int {
			return n.arrivesAt(servers, func(message []byte) { sendMessage(t, client, k.socket, asWired(service), message) })
		}
		first := send()
		for range 20 {
			if got := send(); got != first {
				t.Fatalf("%s: backend %d after backend %d", k.name, got, first)
			}
		}
		// Other backends are added and removed; this one moves to another slot.
		n.service(service, bpf.Service{Id: 1}, 8, uint32(first)+1, 9)
		for range 20 {
			if got := send(); got != first {
				t.Fatalf("%s: others changed: backend %d after backend %d", k.name, got, first)
			}
		}
		// It no longer belongs to the service, but to another one.
		next := uint32(first+1)%3 + 1
		n.service(service, bpf.Service{Id: 1}, next)
		if got := send(); got != int(next)-1 {
			t.Fatalf("%s: backend %d after the service has only backend %d", k.name, got, next-1)
		}
		// It is deleted.
		last := next%3 + 1
		n.removeBackend(next)
		n.service(service, bpf.Service{Id: 1}, last)
		if got := send(); got != int(last)-1 {
			t.Fatalf("%s: backend %d after backend %d is gone", k.name, got, next-1)
		}
	}
}

// New sockets are spread over the backends; with affinity sockets of one network namespace use one backend until it is deleted.
func TestPrivilegedSock_Affinity(t *testing.T) {
	t.Parallel()
	n := newSockNode(t, nil)
	pod := testnet.New(t)
	for _, k := range sockKinds {
		servers := n.backendsOf(k.family)
		service, sticky := address(k.service, 53, loadbalancer.UDP), address(k.other, 53, loadbalancer.UDP)
		n.service(service, bpf.Service{Id: 1}, 1, 2, 3)
		n.service(sticky, bpf.Service{Id: 2, Flags: bpf.ServiceAffinity, Affinity: 1000}, 1, 2, 3)
		send := func(to loadbalancer.Address) int {
			client := rawSocket(t, k.socket, unix.SOCK_DGRAM)
			return n.arrivesAt(servers, func(message []byte) { sendMessage(t, client, k.socket, asWired(to), message) })
		}
		spread := map[int]int{}
		for range 100 {
			spread[send(service)]++
		}
		if len(spread) != 3 {
			t.Errorf("%s: one hundred sockets met backends %v, want all three", k.name, spread)
		}
		first := send(sticky)
		for range 50 {
			if got := send(sticky); got != first {
				t.Fatalf("%s: backend %d after backend %d, in spite of affinity", k.name, got, first)
			}
		}
		gone := uint32(first) + 1
		if err := n.coll.Maps[bpf.MapAffinityMembers].Delete(bpf.AffinityMember{Service: 2, Backend: gone}); err != nil {
			t.Fatal(err)
		}
		n.service(sticky, bpf.Service{Id: 2, Flags: bpf.ServiceAffinity, Affinity: 1000}, gone%3+1)
		if got := send(sticky); got == first {
			t.Errorf("%s: a client keeps a backend that is gone", k.name)
		}
	}
	// Each network namespace is a separate client.
	before := n.entries(bpf.MapAffinity)
	inPod(t, n, pod, func() {
		client := rawSocket(t, unix.AF_INET, unix.SOCK_DGRAM)
		_ = unix.Connect(client, sockaddr(unix.AF_INET, asWired(address(other4, 53, loadbalancer.UDP))))
	})
	if after := n.entries(bpf.MapAffinity); after != before+1 {
		t.Errorf("%d entries of affinity after a pod's connect, %d before", after, before)
	}
}

func (n *sockNode) entries(name string) (count int) {
	var key, value []byte
	for all := n.coll.Maps[name].Iterate(); all.Next(&key, &value); {
		count++
	}
	return count
}

// inPod runs f in another network namespace and in the cgroup.
func inPod(t testing.TB, n *sockNode, pod *testnet.Namespace, f func()) {
	t.Helper()
	pod.Do(func() {
		if err := n.group.Join(); err != nil {
			t.Error(err)
			return
		}
		f()
		if err := n.group.Leave(); err != nil {
			t.Error(err)
		}
	})
}
