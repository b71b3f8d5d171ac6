package sockdiag

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// newStored returns a map of values that programs attach to sockets.
func newStored(t testing.TB) *ebpf.Map {
	t.Helper()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(specs[bpf.MapSockConnected])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func newLister(t testing.TB, stored *ebpf.Map) *Lister {
	t.Helper()
	l, err := NewLister(stored)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Sockets of both families are listed by protocol and namespace, with their values in the map. Sockets without a value, with a value in another map or in
// another namespace are not listed.
func TestPrivilegedList(t *testing.T) {
	t.Parallel()
	stored, other := newStored(t), newStored(t)
	lister := newLister(t, stored)
	type key struct {
		ns       int
		protocol uint8
	}
	want := map[key]map[uint64]bpf.SockPeer{} // by cookie
	var namespaces []*testnet.Namespace
	var closing []net.Conn // UDP sockets of the last namespace
	for i := range 2 {
		ns := testnet.New(t)
		namespaces = append(namespaces, ns)
		for protocol, network := range map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"} {
			want[key{i, protocol}] = map[uint64]bpf.SockPeer{}
			for _, addr := range []string{"127.0.0.1", "::1"} {
				ns.Do(func() {
					raw, translated := connect(t, network, addr)
					connect(t, network, addr)
					elsewhere, _ := connect(t, network, addr)
					peer := translated.RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
					value := bpf.NewSockPeer(netip.AddrPortFrom(peer.Addr(), 80), peer, uint32(7+i))
					put(t, stored, raw, &value)
					put(t, other, elsewhere, &value)
					want[key{i, protocol}][cookie(t, raw)] = value
					if i == 1 && network == "udp" {
						closing = append(closing, translated)
					}
				})
			}
		}
	}
	for k, sockets := range want {
		got, err := lister.List(namespaces[k.ns].Handle(), k.protocol)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			if value, is := sockets[s.Cookie]; !is || value != s.Peer {
				t.Errorf("namespace %d, protocol %d: listed %+v, want %+v", k.ns, k.protocol, s, value)
			}
		}
		if len(got) != len(sockets) {
			t.Errorf("namespace %d, protocol %d: %d sockets, want %d", k.ns, k.protocol, len(got), len(sockets))
		}
	}
	namespaces[1].Do(func() {
		if got, err := lister.List(netns.None(), unix.IPPROTO_UDP); err != nil || len(got) != 2 {
			t.Errorf("in the thread's own namespace: %d sockets, %v", len(got), err)
		}
	})
	for _, c := range closing {
		_ = c.Close()
	}
	if got, err := lister.List(namespaces[1].Handle(), unix.IPPROTO_UDP); err != nil || len(got) != 0 || len(closing) != 2 {
		t.Errorf("of %d closed sockets %d are listed: %v", len(closing), len(got), err)
	}
}

// List returns more sockets than one read of the iterator.
func TestPrivilegedList_ManySockets(t *testing.T) {
	t.Parallel()
	const sockets = 3000
	stored, ns := newStored(t), testnet.New(t)
	ns.Do(func() { fill(t, stored, sockets) })
	got, err := newLister(t, stored).List(ns.Handle(), unix.IPPROTO_UDP)
	if err != nil {
		t.Fatal(err)
	}
	cookies := map[uint64]int{}
	for i := range got {
		cookies[got[i].Cookie]++
	}
	if len(got) != sockets || len(cookies) != sockets {
		t.Errorf("%d sockets, %d different ones, want %d", len(got), len(cookies), sockets)
	}
}

// fill connects UDP sockets and stores a value for each.
func fill(t testing.TB, stored *ebpf.Map, sockets int) {
	t.Helper()
	for range sockets {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{127, 0, 0, 1}})
		if err == nil {
			err = stored.Put(int32(fd), &bpf.SockPeer{BackendId: 1})
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

func put(t *testing.T, m *ebpf.Map, raw syscall.RawConn, value *bpf.SockPeer) {
	t.Helper()
	var err error
	if e := raw.Control(func(fd uintptr) { err = m.Put(int32(fd), value) }); err != nil || e != nil {
		t.Error(err, e)
	}
}

// BenchmarkPrivilegedList lists the sockets of a namespace with 10,000 of them, and of an empty one.
func BenchmarkPrivilegedList(b *testing.B) {
	for name, sockets := range map[string]int{"10000": 10000, "none": 0} {
		b.Run(name, func(b *testing.B) {
			stored, ns := newStored(b), testnet.New(b)
			ns.Do(func() { fill(b, stored, sockets) })
			lister := newLister(b, stored)
			b.ReportAllocs()
			for b.Loop() {
				for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
					if _, err := lister.List(ns.Handle(), protocol); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkPrivilegedNewLister(b *testing.B) {
	stored := newStored(b)
	b.ReportAllocs()
	for b.Loop() {
		l, err := NewLister(stored)
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}
