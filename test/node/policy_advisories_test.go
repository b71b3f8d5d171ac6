package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Security advisories of other projects that concern more than one policy. Cases of [world.ciliumDenies] (a deny of a CIDR against a narrower allow),
// [world.ciliumSubjects] (an empty list of peers, escape from a namespace) and all cases that name a namespace (the pod z/liar imitates the labels of another
// one) cover the other advisories.

// GHSA-c66w-hq56-4q97: an echo request is not a reply to an echo request in the other direction with the same id.
func (w *world) echoOfTheOtherDirectionIsNoReply(t *testing.T) {
	w.apply(t, networkPolicy("x", selectA+"policyTypes: [Ingress]"))
	for i, family := range families {
		t.Run(family.name, func(t *testing.T) {
			id := uint16(40000 + i)
			out, in := flow{"x/a", "x/b", family.ipv6, "icmp", 0}, flow{"x/b", "x/a", family.ipv6, "icmp", 0}
			for range 3 {
				eventually(t, func() error {
					if got := w.tryFor(t, matrixTimeout, id, []flow{out}); !got[0] {
						return fmt.Errorf("%s was not answered", out)
					}
					return nil
				})
				if got := w.tryFor(t, matrixTimeout, id, []flow{in}); got[0] {
					t.Errorf("%s was answered", in)
				}
			}
		})
	}
}

// connect opens a connection that stays until the test ends.
func connect(t *testing.T, from nodekit.NetNS, network string, to netip.AddrPort) net.Conn {
	t.Helper()
	var conn net.Conn
	if err := from.Do(func() (err error) {
		conn, err = net.DialTimeout(network, to.String(), 15*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echoes sends one byte and waits for its echo.
func echoes(conn net.Conn, timeout time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{'?'}); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// A new policy is evaluated for existing connections, in the direction in which they were opened, regardless of the next sender; connections that the policy
// allows keep working.
func (w *world) establishedConnectionsAreReevaluated(t *testing.T) {
	w.apply(t, "")
	type connection struct {
		conn  net.Conn
		name  string
		lives bool // stays open under the policy
	}
	var all []connection
	for i := range families {
		for _, c := range []struct {
			from, to string
			lives    bool
		}{{"z/a", "x/a", false}, {"x/b", "x/a", true}, {"x/a", "z/a", true}, {"outside", "x/a", false}, {"node", "x/a", true}} {
			to := w.party(c.to)
			for _, network := range []string{"tcp", "udp"} {
				server, done := echoServer(t, network, to, to.addrs[i])
				defer done()
				all = append(all, connection{connect(t, w.party(c.from), network, server), fmt.Sprint(c.from, " -> ", c.to, " ", network, " ", families[i].name), c.lives})
			}
		}
	}
	check := func(what string, want func(connection) bool) {
		t.Helper()
		var group errgroup.Group
		for _, c := range all {
			group.Go(func() error {
				timeout := 15 * time.Second
				if !want(c) {
					timeout = 300 * time.Millisecond
				}
				if err := echoes(c.conn, timeout); (err == nil) != want(c) {
					t.Errorf("%s: %s: %v", what, c.name, err)
				}
				return nil
			})
		}
		_ = group.Wait() // each reports its own error
	}
	check("without a policy", func(connection) bool { return true })
	w.apply(t, networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"))
	check("with one", func(c connection) bool { return c.lives })
}

// Packets with a spoofed source get no rights of its owner: neither a pod nor the host outside passes as the node, which may reach all pods, or as a pod that a
// policy allows.
func TestPrivilegedPolicy_SpoofedSource_GetsNoAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t, networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"))
	heard := listenAll(t, w.party("x/a"))
	for i, family := range families {
		t.Run(family.name, func(t *testing.T) {
			subject, friend := w.party("x/a").addrs[i], w.party("x/b").addrs[i]
			node, gateway := w.party(theNode).addrs[i], w.party(marker).pod.Gateway(family.ipv6)
			for _, lie := range []struct {
				spoofer string
				source  netip.Addr
			}{{theOutside, node}, {theOutside, gateway}, {theOutside, friend}, {"z/a", node}, {"z/a", gateway}, {"z/a", friend}, {"z/a", w.party(theOutside).addrs[i]}} {
				if err := nodekit.Spoof(w.party(lie.spoofer), lie.source, subject); err != nil {
					t.Fatal(err)
				}
			}
			// A valid packet sent after the spoofed packets arrives, so the spoofed ones would have arrived by then.
			if err := nodekit.Spoof(w.party(theNode), node, subject); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				if n := heard.from(node); n == 0 {
					return errors.New("what the node sends does not arrive")
				}
				return nil
			})
			if n := heard.from(node); n != 1 {
				t.Errorf("%d packets from the node's address arrived, and it sent one", n)
			}
			if n := heard.from(gateway, friend, w.party(theOutside).addrs[i]); n != 0 {
				t.Errorf("%d packets with stolen addresses arrived", n)
			}
		})
	}
}

// CVE-2025-32793: a terminating pod, whose object is deleted and whose containers still run, keeps its policies and its identity for the policies of other
// pods.
func TestPrivilegedPolicy_TerminatingPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t, networkPolicy("x", selectA+"policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}], egress: [{to: [{namespaceSelector: {matchLabels: {team: w}}}]}]"))
	want := both(inbound("x/a", from("x/b")), outbound("x/a", to("w/*")))
	w.compare(t, usual, want)
	left := maps.Clone(policyPods)
	delete(left, "x/a")
	delete(left, "x/b")
	w.write(t, "pods.yaml", podManifests(left))
	eventually(t, func() error {
		text, err := w.Waggle(t.Context(), "db", "show", "k8s-pods")
		if err == nil && (strings.Contains(text, "x/a") || strings.Contains(text, "x/b")) {
			err = fmt.Errorf("the objects are still known:\n%s", text)
		}
		return err
	})
	w.compare(t, usual, want)
}

// A policy in the kernel stays enforced while no agent runs, and while a starting agent reads the current state.
func TestPrivilegedPolicy_EnforcedWhileAgentIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t, networkPolicy("x", selectA+"policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"))
	heard := listenAll(t, w.party("x/a"))
	deniedPeer := w.party("z/a")
	to := &targets{}
	to.add(w.party("x/a").addrs[:]...)
	ctx, cancel := context.WithCancel(t.Context())
	var sent atomic.Int64
	var group errgroup.Group
	group.Go(func() error { return flood(ctx, deniedPeer, to, &sent) })
	want := both(inbound("x/a", from("x/b")), outbound("x/a", none)) // without egress there are no replies
	for _, outage := range []func() error{func() error { return w.KillAgent(t.Context()) }, func() error { return w.StopAgent(t.Context()) }} {
		if err := outage(); err != nil {
			t.Fatal(err)
		}
		w.denies(t, usual, want)
		w.compare(t, usual, want)
		if err := w.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, w.Node)
		w.denies(t, usual, want)
		w.compare(t, usual, want)
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if n := heard.from(deniedPeer.addrs[:]...); n > 0 || sent.Load() == 0 {
		t.Errorf("%d of %d packets came through", n, sent.Load())
	}
}
