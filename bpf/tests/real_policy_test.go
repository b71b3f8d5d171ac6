package tests

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// connect opens a TCP connection from pod a to a listener of pod b, and returns both ends.
func (r *realNode) connect(t *testing.T, family int) (client, server net.Conn) {
	t.Helper()
	var listener *net.TCPListener
	r.b.Do(func() {
		var err error
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(podB.addr(family), 8080)))
		check(t, err)
	})
	defer listener.Close()
	r.a.Do(func() {
		var err error
		client, err = net.DialTimeout("tcp", listener.Addr().String(), testTimeout)
		check(t, err)
	})
	check(t, listener.SetDeadline(time.Now().Add(testTimeout)))
	server, err := listener.Accept()
	if err != nil {
		t.Fatalf("%v; last event %+v", err, r.event())
	}
	for _, end := range []net.Conn{client, server} {
		t.Cleanup(func() { _ = end.Close() })
	}
	return client, server
}

// A connection that a policy allows works in both directions, although no rule allows its replies. Other traffic is dropped, and a connection that the policy
// no longer allows is cut off, whichever side sends first.
func TestPrivilegedReal_Policy(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	for _, family := range families {
		allowed := rule{kind: bpf.PolicyIdentity, identity: podA.facts().Identity, level: bpf.PolicyPort, protocol: protoTCP, first: 8080}
		r.ingress(podB, allowed)
		r.closed(podA)
		client, server := r.connect(t, family)
		buf := make([]byte, 5)
		for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
			if _, err := ends[0].Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if n, err := limited(t, ends[1]).Read(buf); err != nil || string(buf[:n]) != "hello" {
				t.Fatalf("IPv%d: read %q: %v; last event %+v", family, buf[:n], err, r.event())
			}
		}

		before := r.count(events.PolicyDenied, bpf.DirectionIngress)
		a, b := listenUDP(t, r.a, podA.addr(family)), listenUDP(t, r.b, podB.addr(family))
		if _, err := a.WriteToUDPAddrPort([]byte("hello"), portOf(b)); err != nil {
			t.Fatal(err)
		}
		r.wantDenied(before)

		r.policy(policyID)
		r.facts(podB, func(*bpf.EndpointFacts) {})
		before = r.count(events.PolicyDenied, bpf.DirectionEgress)
		if _, err := server.Write([]byte("bye")); err != nil {
			t.Fatal(err)
		}
		if !r.grows(before, events.PolicyDenied) {
			t.Errorf("IPv%d: the connection goes on", family)
		}
	}
}

// wantDenied waits until one more packet is denied by its receiver's policy.
func (r *realNode) wantDenied(before bpf.MetricsValue) {
	r.t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if r.count(events.PolicyDenied, bpf.DirectionIngress).Packets > before.Packets {
			return
		}
	}
	r.t.Errorf("no packet was denied; last event %+v", r.event())
}

// The kernel of a pod without a socket for a datagram sends an ICMP error, and the sender receives it, although no policy allows flows to the sender.
func TestPrivilegedReal_PortUnreachable(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	r.closed(podA)
	for _, family := range families {
		var conn *net.UDPConn
		r.a.Do(func() {
			var err error
			conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(podB.addr(family), 9)))
			check(t, err)
		})
		defer conn.Close()
		if _, err := conn.Write([]byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		if _, err := limited(t, conn).Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("IPv%d: %v, want a refusal; last event %+v", family, err, r.event())
		}
	}
}
