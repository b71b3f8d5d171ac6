package node_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// A pod has two connections from one port at the same time: with a service, and directly with its backend. Each keeps working and gets its own replies, in
// either order of connecting.
func (m *serviceFixture) onePortForServiceAndBackend(t *testing.T, packets bool) {
	client := m.pod(t, "client")
	m.web(t, "", "one")
	port := uint16(5000)
	for _, addr := range webAddrs {
		service, backend := netip.AddrPortFrom(addr, 80), netip.AddrPortFrom(m.pods["one"].Addr(addr.Is6()), 8080)
		for name, order := range map[string][]netip.AddrPort{"the service first": {service, backend}, "the backend first": {backend, service}} {
			port++
			var conns []net.Conn
			for _, to := range order {
				conn, err := connectFrom(client, netip.AddrPortFrom(client.Addr(addr.Is6()), port), to)
				if err != nil {
					if !packets && len(conns) == 1 {
						break // both are the same connection for the pod's kernel, which returns an error
					}
					t.Fatalf("%s, %s: %v", name, to, err)
				}
				defer conn.Close()
				conns = append(conns, conn)
			}
			for range 3 {
				for i, conn := range conns {
					if a, err := requestOn(conn); err != nil || a.server != "one" {
						t.Errorf("%s, %s: %q answers (%v)", name, order[i], a.server, err)
					}
				}
			}
		}
	}
}

// connectFrom connects from a port that other connections may use as well.
func connectFrom(place nodekit.NetNS, from, to netip.AddrPort) (conn net.Conn, err error) {
	shared := func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(err, set)
	}
	err = nodekit.Bind(place, func() (err error) {
		conn, err = (&net.Dialer{Timeout: answerTimeout, LocalAddr: net.TCPAddrFromAddrPort(from), Control: shared}).Dial("tcp", to.String())
		return err
	})
	return conn, err
}
