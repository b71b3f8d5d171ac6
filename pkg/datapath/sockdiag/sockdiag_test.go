package sockdiag

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// connect connects a socket to a listening port of the loopback device.
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

// Sockets of both protocols and families are found with the cookies that their processes see, and the process of a closed socket gets an error.
func TestPrivilegedDestroy(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	for protocol, network := range map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"} {
		for _, addr := range []string{"127.0.0.1", "::1"} {
			t.Run(network+" "+addr, func(t *testing.T) {
				t.Parallel()
				var raw syscall.RawConn
				var destroyed, other net.Conn
				ns := testnet.New(t)
				ns.Do(func() {
					raw, destroyed = connect(t, network, addr)
					_, other = connect(t, network, addr)
				})
				peer := destroyed.RemoteAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
				c, err := OpenAt(ns.Handle())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				found := all(t, c, protocol)
				i := slices.IndexFunc(found, func(s Socket) bool { return s.Cookie == cookie(t, raw) })
				if i < 0 || found[i].Peer != peer || found[i].Local.String() != destroyed.LocalAddr().String() {
					t.Fatalf("found %+v, want a socket towards %s", found, peer)
				}
				if gone, err := c.Destroy(&found[i]); err != nil || !gone {
					t.Fatal(gone, err)
				}
				_ = destroyed.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := destroyed.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
					t.Errorf("the process reads %v", err)
				}
				if gone, err := c.Destroy(&found[i]); err != nil || gone {
					t.Errorf("the second time: %v, %v", gone, err)
				}
				if _, err := other.Write([]byte("x")); err != nil {
					t.Errorf("another socket: %v", err)
				}
				for _, s := range all(t, c, protocol) {
					if s.Cookie == found[i].Cookie {
						t.Errorf("%+v is still there", s)
					}
				}
			})
		}
	}
}

func cookie(t *testing.T, raw syscall.RawConn) (cookie uint64) {
	t.Helper()
	var err error
	if e := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) }); err != nil || e != nil {
		t.Fatal(err, e)
	}
	return cookie
}

func all(t *testing.T, c *Conn, protocol uint8) (found []Socket) {
	t.Helper()
	if err := c.Each(protocol, func(s Socket) { found = append(found, s) }); err != nil {
		t.Fatal(err)
	}
	return found
}

// An IPv6 socket that is connected to a mapped IPv4 address is found by the IPv4 address, and closed.
func TestPrivilegedDestroy_MappedIPv4(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
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
		c, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		closed := 0
		for _, s := range all(t, c, unix.IPPROTO_TCP) {
			if s.Peer != netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)) {
				continue
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

// A protocol without diagnosis in the kernel is distinguished from a missing namespace, and the error names the kernel option.
func TestPrivilegedEach_AProtocolWithoutDiagnosis(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	ns := testnet.New(t)
	c, err := OpenAt(ns.Handle())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const experimental = 254 // of RFC 3692; no kernel has sockets of this protocol
	err = c.Each(experimental, func(s Socket) { t.Errorf("found %+v", s) })
	if !errors.Is(err, errNoDiag) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Parsing any response returns a socket or an error.
func FuzzRead(f *testing.F) {
	f.Add(make([]byte, messageSize))
	f.Fuzz(func(t *testing.T, message []byte) {
		if _, err := read(unix.IPPROTO_TCP, message); err == nil && len(message) < messageSize {
			t.Errorf("%x is a socket", message)
		}
	})
}
