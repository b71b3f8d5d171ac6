package sockdiag

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// storages is a map of what programs store at sockets, and the program that lists it.
func storages(t testing.TB) (*ebpf.Map, *Lister) {
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
	l, err := NewLister()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return m, l
}

// Sockets of both protocols, of both families and of several namespaces are listed with all that is known of them, those at which
// nothing is stored are not, and one that its process closes is not any more.
func TestPrivilegedList(t *testing.T) {
	t.Parallel()
	stored, lister := storages(t)
	var want []bpf.SockListed
	var first net.Conn // it is closed
	var closed bpf.SockListed
	for i := range uint32(2) {
		ns := testnet.New(t)
		var stat unix.Stat_t
		if err := unix.Fstat(int(ns.Handle()), &stat); err != nil {
			t.Fatal(err)
		}
		for protocol, network := range map[uint16]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"} {
			for _, addr := range []string{"127.0.0.1", "::1"} {
				ns.Do(func() {
					raw, told := connect(t, network, addr)
					connect(t, network, addr)
					peer := told.RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
					entry := bpf.SockListed{Peer: bpf.NewSockPeer(netip.AddrPortFrom(peer.Addr(), 80), peer, 7+i),
						Cookie: cookie(t, raw), Netns: uint32(stat.Ino), Protocol: protocol}
					store(t, stored, raw, &entry.Peer)
					if first == nil && network == "udp" { // one of TCP lasts until its peer has closed it too
						first, closed = told, entry
						return
					}
					want = append(want, entry)
				})
			}
		}
	}
	listed := func() string {
		got, err := lister.List(stored)
		if err != nil {
			t.Fatal(err)
		}
		return sorted(got)
	}
	if got, want := listed(), sorted(append([]bpf.SockListed{closed}, want...)); got != want {
		t.Errorf("listed\n%s\nwant\n%s", got, want)
	}
	_ = first.Close()
	for deadline := time.Now().Add(15 * time.Second); listed() != sorted(want); time.Sleep(10 * time.Millisecond) { // RCU's time
		if time.Now().After(deadline) {
			t.Fatalf("listed\n%s\nwant\n%s", listed(), sorted(want))
		}
	}
}

func sorted(s []bpf.SockListed) string {
	slices.SortFunc(s, func(a, b bpf.SockListed) int { return cmp.Compare(a.Cookie, b.Cookie) })
	return fmt.Sprintf("%+v", s)
}

// More sockets than the kernel lists at once.
func TestPrivilegedList_ManySockets(t *testing.T) {
	t.Parallel()
	stored, lister := storages(t)
	const sockets = 3000
	cookies := map[uint64]int{}
	testnet.New(t).Do(func() {
		for range sockets {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
			if err == nil {
				err = stored.Put(int32(fd), &bpf.SockPeer{BackendId: 1})
			}
			if err != nil {
				t.Error(err)
				return
			}
			cookies[c]++
		}
	})
	got, err := lister.List(stored)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		cookies[got[i].Cookie]--
	}
	for c, n := range cookies {
		if n != 0 {
			t.Errorf("the socket with cookie %d is missing %d times", c, n)
		}
	}
}

func store(t *testing.T, m *ebpf.Map, raw syscall.RawConn, peer *bpf.SockPeer) {
	t.Helper()
	var err error
	if e := raw.Control(func(fd uintptr) { err = m.Put(int32(fd), peer) }); err != nil || e != nil {
		t.Error(err, e)
	}
}

func BenchmarkPrivilegedList(b *testing.B) {
	stored, lister := storages(b)
	testnet.New(b).Do(func() {
		for range 10000 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				b.Error(err)
				return
			}
			b.Cleanup(func() { _ = unix.Close(fd) })
			if err := stored.Put(int32(fd), &bpf.SockPeer{BackendId: 1}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := lister.List(stored); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPrivilegedNewLister(b *testing.B) {
	testnet.RequirePrivileges(b)
	b.ReportAllocs()
	for b.Loop() {
		l, err := NewLister()
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}
