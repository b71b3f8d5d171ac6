package node_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/test/nodekit"
)

// revocable is a connection with both ends, and its flow in the datapath.
type revocable struct {
	name           string
	client, server net.Conn
	flows          *ebpf.Map
	key            ctmap.Key
	forgotten      bool // the flow is removed; otherwise it expires
	lives          bool // stays allowed under the policy
}

// Connections whose flow is expired or removed continue with the next segment of either end while policies allow them. A client whose access was revoked
// receives nothing: neither a segment that its server sends first, as on a connection of the server's own, nor after a reset that both ends ignore.
func (w *world) revokedClientsStayOut(t *testing.T) {
	w.apply(t, "")
	server := w.party("x/a")
	var all []*revocable
	for i, f := range families {
		for from, lives := range map[string]bool{"z/a": false, theOutside: false, "x/b": true} {
			for _, forgotten := range []bool{false, true} {
				client := w.party(from).NetNS
				c := bothEnds(t, w.Node, client, server.NetNS, server.addrs[i])
				c.name = fmt.Sprintf("%s over %s, forgotten: %t", from, f.name, forgotten)
				c.forgotten, c.lives = forgotten, lives
				c.ignoresReset(t, client, attackerAt(t, w.Node, client).reset(c.client))
				c.ignoresReset(t, server, attackerAt(t, w.Node, server.NetNS).reset(c.server))
				all = append(all, c)
			}
		}
	}
	w.apply(t, networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"))
	var group errgroup.Group
	for _, c := range all {
		group.Go(func() error {
			if err := c.end(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			limit := noReplyTimeout
			if c.lives {
				limit = answerTimeout
			}
			for _, way := range []struct {
				name     string
				from, to net.Conn
			}{{"from its server", c.server, c.client}, {"from the client", c.client, c.server}} {
				if err := passes(way.from, way.to, limit); (err == nil) != c.lives {
					t.Errorf("%s: what comes %s: %v, and policies allow it: %t", c.name, way.name, err, c.lives)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// bothEnds opens a TCP connection that stays until the test ends, and exchanges data until its flow is established.
func bothEnds(t *testing.T, node *nodekit.Node, from, to nodekit.NetNS, addr netip.Addr) *revocable {
	t.Helper()
	var listener net.Listener
	if err := to.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	c := &revocable{client: connect(t, from, "tcp", netip.MustParseAddrPort(listener.Addr().String()))}
	var err error
	if c.server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.server.Close() })
	if err := c.talks(); err != nil {
		t.Fatal(err)
	}
	name := bpf.MapCtEst4
	if addr.Is6() {
		name = bpf.MapCtEst6
	}
	c.name, c.flows = "to "+c.client.RemoteAddr().String(), ctMap(t, node, name)
	c.key, _ = ctmap.KeyOf(bpf.CtFlow{Initiator: netip.MustParseAddrPort(c.client.LocalAddr().String()),
		Responder: netip.MustParseAddrPort(c.client.RemoteAddr().String()), Protocol: unix.IPPROTO_TCP})
	return c
}

// passes sends one byte from one end to the other, which must receive it within limit.
func passes(from, to net.Conn, limit time.Duration) error {
	if err := errors.Join(from.SetWriteDeadline(time.Now().Add(limit)), to.SetReadDeadline(time.Now().Add(limit))); err != nil { // wall clock: short if denied
		return err
	}
	if _, err := from.Write([]byte{'!'}); err != nil {
		return err
	}
	_, err := io.ReadFull(to, make([]byte, 1))
	return err
}

// talks sends one byte each way, which must arrive.
func (c *revocable) talks() error {
	return errors.Join(passes(c.client, c.server, answerTimeout), passes(c.server, c.client, answerTimeout))
}

// reset returns a forged RST segment of a connection, from its end at the attacker's place, with a sequence number that the other end ignores.
func (a attacker) reset(end net.Conn) []byte {
	return a.tcp(netip.MustParseAddrPort(end.LocalAddr().String()), netip.MustParseAddrPort(end.RemoteAddr().String()), &layers.TCP{RST: true})
}

// ignoresReset sends a reset within a connection. The reset shortens the lifetime of the flow until the next segment.
func (c *revocable) ignoresReset(t *testing.T, from nodekit.NetNS, reset []byte) {
	t.Helper()
	before := c.expires(t)
	if err := nodekit.SendFrame(from, "eth0", reset); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if int32(c.expires(t)-before) >= 0 {
			return fmt.Errorf("%s: the flow lives as long as before the reset", c.name)
		}
		return nil
	})
	if err := c.talks(); err != nil {
		t.Fatalf("%s: after a reset that its peer ignores: %v", c.name, err)
	}
	if after := c.expires(t); int32(after-before) < 0 {
		t.Errorf("%s: the flow has %d ticks less than before the reset, although the connection went on", c.name, before-after)
	}
}

// expires returns the expiry time of the flow, in ticks.
func (c *revocable) expires(t *testing.T) uint32 {
	t.Helper()
	var entry bpf.CtEntry
	if err := c.flows.Lookup(c.key.Value(), &entry); err != nil {
		t.Fatalf("%s: the flow is not established: %v", c.name, err)
	}
	return entry.Expires
}

// end removes the flow, or sets its expiry time to the past.
func (c *revocable) end() error {
	if c.forgotten {
		return c.flows.Delete(c.key.Value())
	}
	now, err := bpf.CtNow()
	if err != nil {
		return err
	}
	var entry bpf.CtEntry
	if err := c.flows.Lookup(c.key.Value(), &entry); err != nil {
		return err
	}
	entry.Expires = now + bpf.CtTicks(expired)
	return c.flows.Update(c.key.Value(), &entry, ebpf.UpdateExist)
}
