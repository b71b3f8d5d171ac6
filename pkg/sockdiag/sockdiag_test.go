package sockdiag

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func storageMap(t *testing.T) *ebpf.Map {
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

// connect connects a socket to a port of the loopback device that somebody listens on.
func connect(t *testing.T, network, addr string) (syscall.RawConn, net.Conn) {
	t.Helper()
	var address string
	if network == "tcp" {
		l, err := net.Listen(network, net.JoinHostPort(addr, "0"))
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		t.Cleanup(func() { _ = l.Close() })
		address = l.Addr().String()
	} else {
		l, err := net.ListenPacket(network, net.JoinHostPort(addr, "0"))
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		t.Cleanup(func() { _ = l.Close() })
		address = l.LocalAddr().String()
	}
	c, err := net.Dial(network, address)
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	t.Cleanup(func() { _ = c.Close() })
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Error(err)
	}
	return raw, c
}

// Sockets of both protocols and families are found, those of TCP with what is stored at them, and one that is closed tells its
// process.
func TestPrivilegedDestroy(t *testing.T) {
	t.Parallel()
	stored := storageMap(t)
	for protocol, network := range map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"} {
		for _, addr := range []string{"127.0.0.1", "::1"} {
			t.Run(network+" "+addr, func(t *testing.T) {
				t.Parallel()
				var raw syscall.RawConn
				var told, other net.Conn
				ns := testnet.New(t)
				ns.Do(func() {
					raw, told = connect(t, network, addr)
					_, other = connect(t, network, addr) // a program has stored nothing at it
				})
				peer := told.RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
				service := netip.AddrPortFrom(peer.Addr(), 80)
				value := bpf.NewSockPeer(service, peer, 7)
				if err := raw.Control(func(fd uintptr) {
					if err := stored.Put(int32(fd), &value); err != nil {
						t.Error(err)
					}
				}); err != nil {
					t.Fatal(err)
				}
				c, err := OpenAt(ns.Handle())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				found := all(t, c, protocol, stored)
				i := slices.IndexFunc(found, func(s Socket) bool { return s.Peer == peer })
				if i < 0 || (found[i].Storage != nil) != (network == "tcp") || found[i].Peer != peer || found[i].Local.String() != told.LocalAddr().String() {
					t.Fatalf("found %+v, want a socket towards %s", found, peer)
				}
				var got bpf.SockPeer
				if _, err := binary.Decode(found[i].Storage, binary.NativeEndian, &got); network == "tcp" && (err != nil || got != value) {
					t.Errorf("stored %+v, %v, want %+v", got, err, value)
				}
				if gone, err := c.Destroy(&found[i]); err != nil || !gone {
					t.Fatal(gone, err)
				}
				_ = told.SetReadDeadline(time.Now().Add(5 * time.Second))
				if _, err := told.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
					t.Errorf("the process reads %v", err)
				}
				if gone, err := c.Destroy(&found[i]); err != nil || gone {
					t.Errorf("the second time: %v, %v", gone, err)
				}
				if _, err := other.Write([]byte("x")); err != nil {
					t.Errorf("another socket: %v", err)
				}
				for _, s := range all(t, c, protocol, stored) {
					if s.Peer == peer && s.Local == found[i].Local {
						t.Errorf("%+v is still there", s)
					}
				}
			})
		}
	}
}

func all(t *testing.T, c *Conn, protocol uint8, stored *ebpf.Map) (found []Socket) {
	t.Helper()
	if err := c.Each(protocol, stored, func(s Socket) {
		s.Storage = slices.Clone(s.Storage)
		found = append(found, s)
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// An IPv6 socket that is connected to a mapped IPv4 address is found by that address, and closed.
func TestPrivilegedDestroy_MappedIPv4(t *testing.T) {
	t.Parallel()
	stored := storageMap(t)
	ns := testnet.New(t)
	ns.Do(func() {
		server, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		port := server.Addr().(*net.TCPAddr).Port
		mapped := netip.MustParseAddr("::ffff:127.0.0.1").As16()
		if err := unix.Connect(fd, &unix.SockaddrInet6{Port: port, Addr: mapped}); err != nil {
			t.Error(err)
			return
		}
		value := bpf.NewSockPeer(netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("127.0.0.1:"+strconv.Itoa(port)), 7)
		if err := stored.Put(int32(fd), &value); err != nil {
			t.Error(err)
			return
		}
		c, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		closed := 0
		for _, s := range all(t, c, unix.IPPROTO_TCP, stored) {
			if s.Storage == nil {
				continue
			}
			if s.Peer != netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)) {
				t.Errorf("found %+v", s)
			}
			if _, err := c.Destroy(&s); err != nil {
				t.Error(err)
			}
			closed++
		}
		if _, err := unix.Write(fd, []byte("x")); closed != 1 || err == nil {
			t.Errorf("closed %d; the process writes: %v", closed, err)
		}
	})
}

// Whatever the kernel were to answer, reading it ends with a socket or an error.
func FuzzRead(f *testing.F) {
	f.Add(make([]byte, answerSize))
	f.Add(append(make([]byte, answerSize), 8, 0, answerStorages, 0, 4, 0, storage, 0))
	f.Fuzz(func(t *testing.T, message []byte) {
		if _, err := read(unix.IPPROTO_TCP, message); err == nil && len(message) < answerSize {
			t.Errorf("%x is a socket", message)
		}
	})
}
