package sockterm

import (
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
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// oneMap provides the map of the peers that programs store at sockets.
type oneMap struct{ *ebpf.Map }

func (m oneMap) Get(string) (*ebpf.Map, error)            { return m.Map, nil }
func (oneMap) All() (map[string]*ebpf.Map, error)         { return nil, nil }
func (oneMap) Put(string, any, any) error                 { return nil }
func (oneMap) Delete(string, any) error                   { return nil }
func (oneMap) Entries(string) ([]pinnedmaps.Entry, error) { return nil, nil }

// Sockets inside a namespace at a path are listed with their stored peers, and closed. Sockets without a stored peer or with another
// address by now stay open, and so do sockets of another namespace at the path.
func TestPrivilegedTerminate_InANamespace(t *testing.T) {
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
	terminated, left := map[string]net.Conn{}, map[string]net.Conn{}
	var want []string
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
				terminated[name], left[name+", not translated"], left[name+", connected again"] = dial(), dial(), dial()
			})
			if t.Failed() {
				t.FailNow()
			}
			peer, asked := terminated[name].RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort(), netip.MustParseAddrPort(service)
			store(t, stored, terminated[name], bpf.NewSockPeer(asked, peer, 7))
			store(t, stored, left[name+", connected again"], bpf.NewSockPeer(asked, netip.AddrPortFrom(peer.Addr(), peer.Port()+1), 7))
			want = append(want, describe(socket{Service: loadbalancer.Address{Addr: asked.Addr(), Port: asked.Port(), Protocol: p},
				Backend: loadbalancer.Address{Addr: peer.Addr(), Port: peer.Port(), Protocol: p}}))
		}
	}
	k, err := newKernel(oneMap{stored}).Load()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if _, err := k.Open(path, stat.Ino+1); !errors.Is(err, podns.ErrGone) {
		t.Errorf("another namespace at the path: %v", err)
	}
	if _, err := k.Open(filepath.Join(t.TempDir(), "gone"), stat.Ino); !errors.Is(err, podns.ErrGone) {
		t.Errorf("nothing at the path: %v", err)
	}
	inside, err := k.Open(path, stat.Ino)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	list, err := inside.Connected()
	var got []string
	for _, s := range list {
		got = append(got, describe(s))
	}
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("listed %q, %v, want %q", got, err, want)
	}
	for i := range list {
		if was, err := inside.Terminate(&list[i]); err != nil || !was {
			t.Errorf("close %s: %v, %v", describe(list[i]), was, err)
		}
		if was, err := inside.Terminate(&list[i]); err != nil || was {
			t.Errorf("close %s a second time: %v, %v", describe(list[i]), was, err)
		}
	}
	for name, c := range terminated {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
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

func describe(s socket) string { return s.Service.String() + " " + s.Backend.String() }

// store stores a value at a socket, as the socket programs do.
func store(t *testing.T, m *ebpf.Map, c net.Conn, peer bpf.SockPeer) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err == nil {
		err = errors.Join(err, raw.Control(func(fd uintptr) {
			if err := m.Put(int32(fd), &peer); err != nil {
				t.Error(err)
			}
		}))
	}
	if err != nil {
		t.Fatal(err)
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

// The agent has SYS_ADMIN only if it must close sockets inside pods. Without the capability the error names it.
func TestPrivilegedOpen_NamesMissingCapability(t *testing.T) {
	t.Parallel()
	ns := testnet.New(t)
	var stat unix.Stat_t
	if err := unix.Fstat(int(ns.Handle()), &stat); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its capabilities
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		data[0].Effective = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_DAC_OVERRIDE
		data[0].Permitted = data[0].Effective
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		_, err := lister{}.Open("/proc/thread-self/fd/"+strconv.Itoa(int(ns.Handle())), stat.Ino)
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
