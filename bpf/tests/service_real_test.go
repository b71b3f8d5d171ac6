package tests

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// Real kernels at both ends: they leave checksums to a device that never completes them, datagrams have several fragments, streams use super-packets.
// Backends are another pod, the requesting pod, and the node, whose replies pass through the stack.
func TestPrivilegedReal_Services(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	data := bytes.Repeat([]byte("waggle dance "), 100_000)
	for _, family := range families {
		for name, server := range map[string]struct {
			ns   *testnet.Namespace
			addr netip.Addr
		}{"another pod": {r.b, podB.addr(family)}, "itself": {r.a, podA.addr(family)}, "the node": {r.host, gateways[family]}} {
			backend := listenUDP(t, server.ns, server.addr)
			r.service(family, protoUDP, []netip.AddrPort{portOf(backend)})
			client := r.dialUDP(family)
			for _, size := range []int{1, 1400, 4000, 20_000} {
				r.echoes(client, backend, size)
			}

			listener := listenTCP(t, server.ns, server.addr)
			r.service(family, protoTCP, []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()})
			if got := r.ask(listener, family, data); !bytes.Equal(got, data) {
				t.Errorf("IPv%d from %s: %d of %d bytes came back; last event %+v", family, name, len(got), len(data), r.event())
			}
		}
	}
}

// No socket listens, or there is no backend: the client's kernel gets an error immediately.
func TestPrivilegedReal_ServicesReject(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	for _, family := range families {
		for name, backends := range map[string][]netip.AddrPort{"no backend": nil, "a closed port": at(podB.addr(family)), "its own closed port": at(podA.addr(family))} {
			r.service(family, protoUDP, backends)
			r.service(family, protoTCP, backends)
			client := r.dialUDP(family)
			if _, err := client.Write([]byte("anybody?")); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("IPv%d, %s: a datagram: %v, want a refusal; last event %+v", family, name, err, r.event())
			}
			r.a.Do(func() {
				_, err := net.DialTimeout("tcp", clusterAddr(family), testTimeout)
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("IPv%d, %s: a connection: %v, want a refusal; last event %+v", family, name, err, r.event())
				}
			})
		}
	}
}

func clusterAddr(family int) string {
	return netip.AddrPortFrom(clusterIP[family], servicePort).String()
}

// dialUDP opens a socket of pod a that receives datagrams only from the service.
func (r *realNode) dialUDP(family int) (conn *net.UDPConn) {
	r.t.Helper()
	r.a.Do(func() {
		c, err := net.Dial("udp", clusterAddr(family))
		check(r.t, err)
		conn = c.(*net.UDPConn)
	})
	r.t.Cleanup(func() { _ = conn.Close() })
	check(r.t, conn.SetDeadline(time.Now().Add(testTimeout)))
	return conn
}

// echoes sends a datagram to the service, which the backend sends back.
func (r *realNode) echoes(client, backend *net.UDPConn, size int) {
	r.t.Helper()
	message := bytes.Repeat([]byte{byte(size)}, size)
	if _, err := client.Write(message); err != nil {
		r.t.Fatal(err)
	}
	buf := make([]byte, size+1)
	n, peer, err := backend.ReadFromUDPAddrPort(buf)
	if err != nil || !bytes.Equal(buf[:n], message) {
		r.t.Fatalf("%d bytes of %d arrived: %v; last event %+v", n, size, err, r.event())
	}
	if _, err := backend.WriteToUDPAddrPort(message, peer); err != nil {
		r.t.Fatal(err)
	}
	if n, err = client.Read(buf); err != nil || !bytes.Equal(buf[:n], message) {
		r.t.Fatalf("%d bytes of %d came back: %v; last event %+v", n, size, err, r.event())
	}
}

func listenTCP(t *testing.T, ns *testnet.Namespace, addr netip.Addr) (listener *net.TCPListener) {
	t.Helper()
	ns.Do(func() {
		var err error
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		check(t, err)
	})
	t.Cleanup(func() { _ = listener.Close() })
	check(t, listener.SetDeadline(time.Now().Add(testTimeout)))
	return listener
}

// ask sends data from pod a to the service, whose backend returns it, and returns the received data.
func (r *realNode) ask(listener *net.TCPListener, family int, data []byte) []byte {
	r.t.Helper()
	go func() {
		server, err := listener.Accept()
		if err != nil {
			return
		}
		defer server.Close()
		_ = server.SetDeadline(time.Now().Add(testTimeout))
		_, _ = io.Copy(server, server)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	var client net.Conn
	r.a.Do(func() {
		var err error
		client, err = net.DialTimeout("tcp", clusterAddr(family), testTimeout)
		check(r.t, err)
	})
	if client == nil {
		return nil
	}
	defer client.Close()
	check(r.t, client.SetDeadline(time.Now().Add(testTimeout)))
	go func() {
		_, _ = client.Write(data)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(client)
	check(r.t, err)
	return got
}
