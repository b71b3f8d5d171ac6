package sockterm

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// oneMap is the map of what programs store at sockets.
type oneMap struct{ *ebpf.Map }

func (m oneMap) Get(string) (*ebpf.Map, error)         { return m.Map, nil }
func (oneMap) All() (map[string]*ebpf.Map, error)      { return nil, nil }
func (oneMap) Put(string, any, any) error              { return nil }
func (oneMap) Delete(string, any) error                { return nil }
func (oneMap) Entries(string) ([]bpfmaps.Entry, error) { return nil, nil }

// Sockets inside a namespace that is known by its path are listed with what programs stored at them, and closed. Those at which
// nothing is stored, or that are connected to somebody else by now, are left alone, and so is another namespace at the path. A
// protocol whose sockets the kernel does not list is an error, which does not keep those of others.
func TestPrivilegedClose_InANamespace(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := ebpf.NewMap(specs[bpf.MapSockConnected])
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	ns := testnet.New(t)
	path := "/proc/self/fd/" + strconv.Itoa(int(ns.Handle()))
	var stat unix.Stat_t
	if err := unix.Fstat(int(ns.Handle()), &stat); err != nil {
		t.Fatal(err)
	}
	told, left := map[string]net.Conn{}, map[string]net.Conn{}
	var want []socket
	put := func(c net.Conn, service string, backend netip.AddrPort) uint64 {
		value := bpf.NewSockPeer(netip.MustParseAddrPort(service), backend, 7)
		raw, err := c.(syscall.Conn).SyscallConn()
		var cookie uint64
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				var e error
				cookie, e = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
				if e = errors.Join(e, stored.Put(int32(fd), &value)); e != nil {
					t.Error(e)
				}
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		return cookie
	}
	for addr, service := range map[string]string{"127.0.0.1": "10.96.0.1:80", "::1": "[fd00:96::1]:80"} {
		for p, network := range map[loadbalancer.Protocol]string{loadbalancer.TCP: "tcp", loadbalancer.UDP: "udp"} {
			name := network + " " + addr
			ns.Do(func() {
				server, err := listen(t, network, addr)
				if err != nil {
					t.Error(err)
					return
				}
				dial := func() net.Conn {
					c, err := net.Dial(network, server.String())
					if err != nil {
						t.Error(err)
					}
					return c
				}
				told[name], left[name+", not translated"], left[name+", connected anew"] = dial(), dial(), dial()
			})
			if t.Failed() {
				t.FailNow()
			}
			peer := told[name].RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
			asked := netip.MustParseAddrPort(service)
			s := socket{Netns: stat.Ino, Service: loadbalancer.Address{Addr: asked.Addr(), Port: asked.Port(), Protocol: p},
				Backend: loadbalancer.Address{Addr: peer.Addr(), Port: peer.Port(), Protocol: p}}
			s.Cookie = put(told[name], service, peer)
			want = append(want, s)
			s.Backend.Port++
			s.Cookie = put(left[name+", connected anew"], service, netip.AddrPortFrom(peer.Addr(), peer.Port()+1))
			want = append(want, s)
		}
	}
	k := newKernel(oneMap{stored})
	list, err := k.Load()
	if err != nil {
		t.Fatal(err)
	}
	defer list.End()
	got, err := list.Connected()
	byCookie := func(a, b socket) int { return cmp.Compare(a.Cookie, b.Cookie) }
	slices.SortFunc(got, byCookie)
	slices.SortFunc(want, byCookie)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("listed %+v, %v, want %+v", got, err, want)
	}
	var own []socket
	ns.Do(func() { own, err = list.Connected() })
	if err != nil || len(own) != len(want) || own[0].Netns != 0 {
		t.Errorf("listed in their own namespace: %+v, %v", own, err)
	}
	if _, err := k.Close(path, stat.Ino+1, got); !errors.Is(err, errNamespaceGone) {
		t.Errorf("another namespace at the path: %v", err)
	}
	if _, err := k.Close(filepath.Join(t.TempDir(), "gone"), stat.Ino, got); !errors.Is(err, errNamespaceGone) {
		t.Errorf("nothing at the path: %v", err)
	}
	unlisted := socket{Netns: stat.Ino, Backend: loadbalancer.Address{Protocol: 254}} // for experiments; no kernel has sockets of it
	closed, err := k.Close(path, stat.Ino, append(got, unlisted))
	if len(closed) != len(told) {
		t.Errorf("closed %+v, want %d", closed, len(told))
	}
	if err == nil || errors.Is(err, errNamespaceGone) || !strings.Contains(err.Error(), "CONFIG_INET_UDP_DIAG") {
		t.Errorf("sockets of a protocol that the kernel does not list: %v", err)
	}
	for name, c := range told {
		_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("%s: the process reads %v", name, err)
		}
		_ = c.Close()
	}
	for name, c := range left {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = c.Close()
	}
}

// listen listens on any port.
func listen(t *testing.T, network, addr string) (net.Addr, error) {
	t.Helper()
	if network == "tcp" {
		l, err := net.Listen(network, net.JoinHostPort(addr, "0"))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = l.Close() })
		return l.Addr(), nil
	}
	l, err := net.ListenPacket(network, net.JoinHostPort(addr, "0"))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.LocalAddr(), nil
}

// The agent has no SYS_ADMIN unless it was asked to close sockets inside pods: then it says what it lacks.
func TestPrivilegedOpen_SaysWhichCapabilityItLacks(t *testing.T) {
	t.Parallel()
	ns := testnet.New(t)
	var stat unix.Stat_t
	if err := unix.Fstat(int(ns.Handle()), &stat); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its capabilities
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		data[0].Effective = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_DAC_OVERRIDE
		data[0].Permitted = data[0].Effective
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		_, err := newKernel(oneMap{}).Close("/proc/thread-self/fd/"+strconv.Itoa(int(ns.Handle())), stat.Ino, nil)
		done <- err
	}()
	err := <-done
	if !errors.Is(err, unix.EPERM) {
		t.Fatalf("%v", err)
	}
	for _, part := range []string{"SYS_ADMIN", "--bpf-lb-sock-terminate-pod-connections"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}
