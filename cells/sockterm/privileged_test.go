package sockterm

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
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

// Sockets inside a namespace that is known by its path: of TCP those that programs connected to the backend are closed, of UDP
// all that are connected to it. Another namespace at the path is left alone.
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
	for _, addr := range []string{"127.0.0.1", "::1"} {
		var translated, direct, datagrams net.Conn
		ns.Do(func() {
			server, err1 := net.Listen("tcp", net.JoinHostPort(addr, "0"))
			packets, err2 := net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _, _ = server.Close(), packets.Close() })
			var errs [3]error
			translated, errs[0] = net.Dial("tcp", server.Addr().String())
			direct, errs[1] = net.Dial("tcp", server.Addr().String())
			datagrams, errs[2] = net.Dial("udp", packets.LocalAddr().String())
			if err := errors.Join(errs[:]...); err != nil {
				t.Error(err)
			}
		})
		peer := translated.RemoteAddr().(*net.TCPAddr).AddrPort()
		value := bpf.NewSockPeer(netip.MustParseAddrPort("10.96.0.1:80"), peer, 7)
		raw, err := translated.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if err := stored.Put(int32(fd), &value); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}

		k := newKernel(oneMap{stored})
		if _, err := k.Open(path, stat.Ino+1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("another namespace at the path: %v", err)
		}
		opened, err := k.Open(path, stat.Ino)
		if err != nil {
			t.Fatal(err)
		}
		for p, want := range map[loadbalancer.Protocol]netip.AddrPort{loadbalancer.TCP: peer,
			loadbalancer.UDP: datagrams.RemoteAddr().(*net.UDPAddr).AddrPort()} {
			n, err := opened.Close(p, func(a loadbalancer.Address) bool {
				return netip.AddrPortFrom(a.Addr, a.Port) == want && a.Protocol == p
			})
			if err != nil || n != 1 {
				t.Errorf("%s of %s: closed %d, %v", p, addr, n, err)
			}
		}
		opened.End()
		for what, c := range map[string]net.Conn{"translated": translated, "datagrams": datagrams} {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("%s %s: the process reads %v", addr, what, err)
			}
		}
		if _, err := direct.Write([]byte("x")); err != nil {
			t.Errorf("%s: a connection that no program has made: %v", addr, err)
		}
		for _, c := range []net.Conn{translated, direct, datagrams} {
			_ = c.Close()
		}
	}
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
		_, err := newKernel(oneMap{}).Open("/proc/thread-self/fd/"+strconv.Itoa(int(ns.Handle())), stat.Ino)
		done <- err
	}()
	if err := <-done; !errors.Is(err, os.ErrPermission) {
		t.Errorf("%v", err)
	} else {
		t.Log(err)
	}
}
