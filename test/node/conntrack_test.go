package node_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/test/nodekit"
)

// tracked is a flow as waggle bpf ct list prints it.
type tracked struct {
	Protocol            string
	Source, Destination netip.AddrPort
	State               string
	From, To            struct {
		Endpoint uint16
		Pod      string
	}
	Packets, Bytes uint64
}

func flowsOf(t *testing.T, node *nodekit.Node, filter ...string) (flows []tracked) {
	t.Helper()
	text, err := node.Waggle(t.Context(), append([]string{"bpf", "ct", "list", "-o", "json"}, filter...)...)
	if err == nil {
		err = json.Unmarshal([]byte(text), &flows)
	}
	if err != nil {
		t.Fatal(err)
	}
	return flows
}

// conversation is a connection to an echo server. close closes both.
type conversation struct {
	net.Conn
	close func()
}

// converse connects two places by TCP or UDP and exchanges a first message.
func converse(t *testing.T, network string, from, to nodekit.NetNS, addr netip.Addr) conversation {
	t.Helper()
	server, done := echoServer(t, network, to, addr)
	conn, err := talk(network, from, server)
	if err != nil {
		done()
		t.Fatal(err)
	}
	return conversation{conn, func() { _ = conn.Close(); done() }}
}

// echoServer starts a server that echoes messages of all clients.
func echoServer(t *testing.T, network string, at nodekit.NetNS, addr netip.Addr) (server netip.AddrPort, done func()) {
	t.Helper()
	var err error
	if network == "tcp" {
		var listener net.Listener
		if err = at.Do(func() (err error) {
			listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
			return err
		}); err == nil {
			go func() {
				for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
					go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
				}
			}()
			return netip.MustParseAddrPort(listener.Addr().String()), func() { _ = listener.Close() }
		}
		t.Fatal(err)
	}
	var conn net.PacketConn
	if err = at.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		buffer := make([]byte, 2048)
		for n, peer, err := conn.ReadFrom(buffer); err == nil; n, peer, err = conn.ReadFrom(buffer) {
			_, _ = conn.WriteTo(buffer[:n], peer)
		}
	}()
	return netip.MustParseAddrPort(conn.LocalAddr().String()), func() { _ = conn.Close() }
}

const (
	// answerTimeout is the deadline of a required reply. It is long because a busy machine delays replies; a lost datagram is detected at any timeout.
	answerTimeout = 15 * time.Second
	// noReplyTimeout is the timeout of a reply that must not arrive, and of a message that the caller repeats.
	noReplyTimeout = 300 * time.Millisecond
)

// talk connects and exchanges one message, which must get a reply.
func talk(network string, from nodekit.NetNS, server netip.AddrPort) (net.Conn, error) {
	return talkWithin(answerTimeout, network, from, server)
}

// talkBriefly does the same as talk with a short timeout, for attempts that are repeated and for messages that must not get a reply.
func talkBriefly(network string, from nodekit.NetNS, server netip.AddrPort) (net.Conn, error) {
	return talkWithin(noReplyTimeout, network, from, server)
}

// talkWithin does the same with a timeout of each reply. The first datagram is sent in any case.
func talkWithin(limit time.Duration, network string, from nodekit.NetNS, server netip.AddrPort) (conn net.Conn, err error) {
	dial := limit
	if network == "udp" { // needs no reply
		dial = answerTimeout
	}
	err = from.Do(func() (err error) {
		conn, err = net.DialTimeout(network, server.String(), dial)
		return err
	})
	if err != nil {
		return nil, err
	}
	// The second message of the initiator establishes a UDP flow.
	for range map[bool]int{true: 1, false: 2}[network == "tcp"] {
		if err := exchangeWithin(limit, conn); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// exchange sends one message, which must get a reply.
func exchange(conn net.Conn) error { return exchangeWithin(answerTimeout, conn) }

// exchangeWithin does the same with a timeout of the reply, which begins after the message was sent.
func exchangeWithin(limit time.Duration, conn net.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	if _, err := conn.Write([]byte("waggle")); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	_, err := io.ReadFull(conn, make([]byte, len("waggle")))
	return err
}

// Flows of the datapath are listed in words, for a pod, an address or all; top talkers are shown; flows are flushed on demand.
func TestPrivilegedConntrack_ListTopAndFlush(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b, c := addPod(t, node, "a"), addPod(t, node, "b"), addPod(t, node, "c")
	for _, family := range families {
		from, to := a.Addr(family.ipv6), b.Addr(family.ipv6)
		for _, network := range []string{"tcp", "udp"} {
			defer converse(t, network, a, b, to).close()
		}
		if err := nodekit.Ping(a, to, 56); err != nil {
			t.Fatal(err)
		}
		if err := nodekit.Ping(c, to, 56); err != nil {
			t.Fatal(err)
		}
		states := map[string]string{}
		for _, f := range flowsOf(t, node, "--address="+from.String(), "--pod=default/b") {
			if f.Source.Addr() != from || f.Destination.Addr() != to || f.From.Pod != "default/a" || f.To.Pod != "default/b" ||
				f.From.Endpoint == f.To.Endpoint || f.Packets < 2 || f.Bytes < 2*40 {
				t.Errorf("%s: %+v", family.name, f)
			}
			states[f.Protocol] = f.State
		}
		icmp := "ICMP"
		if family.ipv6 {
			icmp = "ICMPv6"
		}
		if len(states) != 3 || states["TCP"] != "established" || states["UDP"] != "answered" || states[icmp] != "answered" {
			t.Errorf("%s: states %v", family.name, states)
		}
	}
	var top []struct {
		Pod            string
		Flows, Counted int
		Packets        uint64
	}
	text, err := node.Waggle(t.Context(), "bpf", "ct", "top", "-o", "json")
	if err := errors.Join(err, json.Unmarshal([]byte(text), &top)); err != nil {
		t.Fatal(err)
	}
	// The flows between a and b, and those from c to b, in both families. A single ping establishes no flow and does not count against a quota.
	if len(top) != 3 || top[0].Pod != "default/b" || top[0].Flows != 8 || top[1].Pod != "default/a" || top[1].Flows != 6 ||
		top[1].Counted != 4 || top[2].Flows != 2 || top[0].Packets <= top[2].Packets {
		t.Errorf("top talkers: %+v", top)
	}
	if text, err := node.Waggle(t.Context(), "bpf", "ct", "flush"); err == nil {
		t.Errorf("flush without a word of which flows: %q", text)
	}
	if _, err := node.Waggle(t.Context(), "bpf", "ct", "flush", "--pod=default/a"); err != nil {
		t.Fatal(err)
	}
	if left := flowsOf(t, node); len(left) != 2 || left[0].From.Pod != "default/c" || left[1].From.Pod != "default/c" {
		t.Errorf("after the flows of a were forgotten there are %+v", left)
	}
}

// ctMap opens a pinned map.
func ctMap(t *testing.T, node *nodekit.Node, name string) (m *ebpf.Map) {
	t.Helper()
	if err := node.Do(func() (err error) {
		m, err = ebpf.LoadPinnedMap(filepath.Join(node.BPFRoot(), "waggle", "maps", bpf.PinName(name, bpf.LayoutVersion(name))), nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// occupy writes up to n established flows of an initiator into a map, limited by the free capacity, and returns their number. A second call changes the
// lifetime of these flows.
func occupy(t *testing.T, m *ebpf.Map, initiator netip.Addr, id uint16, n int, lasts time.Duration) int {
	t.Helper()
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	var keys4 []bpf.CtKey4
	var keys6 []bpf.CtKey6
	entries := make([]bpf.CtEntry, n)
	for i := range n {
		target := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		if initiator.Is6() {
			target = netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64([]byte{0x20, 1, 0xd, 0xb8, 9, 9, 9, 9}, uint64(i))))
		}
		key, second := ctmap.KeyOf(bpf.CtFlow{Initiator: netip.AddrPortFrom(initiator, uint16(i>>16)+1), Responder: netip.AddrPortFrom(target, 443),
			Protocol: unix.IPPROTO_TCP})
		entries[i] = bpf.CtEntry{Check: 1, Created: now, Expires: now + bpf.CtTicks(lasts), Initiator: id, Flags: bpf.CtEstablished}
		if second {
			entries[i].Flags |= bpf.CtInitiatorSecond
		}
		keys4, keys6 = append(keys4, key.V4), append(keys6, key.V6)
	}
	var keys any = keys4
	if initiator.Is6() {
		keys = keys6
	}
	put, err := m.BatchUpdate(keys, entries, nil)
	if err != nil && !errors.Is(err, unix.E2BIG) {
		t.Fatal(err)
	}
	return put
}

// dropsFor returns the number of packets that were dropped for a reason, in both directions.
func dropsFor(t *testing.T, node *nodekit.Node, reason events.Reason) (n float64) {
	t.Helper()
	samples, err := scrape(node)
	if err != nil {
		t.Fatal(err)
	}
	for _, direction := range []string{"ingress", "egress"} {
		n += samples[fmt.Sprintf("waggle_datapath_packets_total{direction=%q,reason=%q}", direction, reason)]
	}
	return n
}

// awaitDrops waits until at least this number of packets was dropped for a reason: a busy kernel delays packets.
func awaitDrops(t *testing.T, node *nodekit.Node, reason events.Reason, want float64) {
	t.Helper()
	eventually(t, func() error {
		if got := dropsFor(t, node, reason); got < want {
			return fmt.Errorf("%v packets were counted as dropped for the reason %v, want at least %v", got, reason, want)
		}
		return nil
	})
}

// Remaining lifetimes of synthetic flows: longer than any test, and already expired.
const (
	unexpired = time.Hour
	expired   = -2 * time.Second
)

// With a full table, established connections keep working, and new ones are dropped with a counted reason. As soon as entries expire, there is capacity again.
func TestPrivilegedConntrack_FullTable(t *testing.T) {
	t.Parallel()
	node := startNode(t, withMetrics())
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			name := bpf.MapCtEst4
			if family.ipv6 {
				name = bpf.MapCtEst6
			}
			m, to := ctMap(t, node, name), b.Addr(family.ipv6)
			standing := converse(t, "tcp", a, b, to)
			defer standing.close()
			server, done := echoServer(t, "udp", b, to)
			defer done()
			if put := occupy(t, m, outsideAddr(family.ipv6), 0, int(m.MaxEntries()), unexpired); put < int(m.MaxEntries())/2 {
				t.Fatalf("only %d flows fit", put)
			}
			newFlowIsDropped(t, node, "udp", a, server)
			newFlowIsDropped(t, node, "tcp", a, netip.MustParseAddrPort(standing.RemoteAddr().String()))
			if err := exchange(standing); err != nil {
				t.Errorf("the connection that stood: %v", err)
			}
			occupy(t, m, outsideAddr(family.ipv6), 0, int(m.MaxEntries()), expired)
			awaitCapacity(t, a, server)
			if err := exchange(standing); err != nil {
				t.Errorf("the connection that stood, afterwards: %v", err)
			}
			signals := func() (bool, float64) {
				samples, err := scrape(node)
				return err == nil, samples[fmt.Sprintf("waggle_conntrack_signals_total{map=%q,reason=\"full\"}", name)]
			}
			eventually(t, func() error {
				if _, n := signals(); n < 1 {
					return fmt.Errorf("%v signals that the map is full", n)
				}
				return nil
			})
		})
	}
}

// newFlowIsDropped requires that a new flow is not established because the table is full. It awaits the count of drops with further attempts, because an attempt
// without a reply in time ends before the packet that would establish the flow.
func newFlowIsDropped(t *testing.T, node *nodekit.Node, network string, from nodekit.NetNS, to netip.AddrPort) {
	t.Helper()
	before := dropsFor(t, node, events.FlowsFull)
	for tries := 0; ; tries++ {
		conn, err := talkBriefly(network, from, to)
		if err == nil {
			_ = conn.Close()
			t.Errorf("a new %s flow passes a full table", network)
			return
		}
		if dropsFor(t, node, events.FlowsFull) > before {
			return
		}
		if tries == 100 {
			t.Errorf("no packet of a new %s flow was counted as refused", network)
			return
		}
	}
}

// awaitCapacity opens new flows until one passes after others have expired. Another test covers the immediate start of the collector on a signal.
func awaitCapacity(t *testing.T, from nodekit.NetNS, server netip.AddrPort) {
	t.Helper()
	eventually(t, func() error {
		conn, err := talkBriefly("udp", from, server)
		if err != nil {
			return fmt.Errorf("no new flow passes: %w", err)
		}
		return conn.Close()
	})
}

// A pod that opens as many flows as it can gets its quota at most, and leaves the other pods their quotas.
func TestPrivilegedConntrack_NoisyNeighbour_LimitedToQuota(t *testing.T) {
	t.Parallel()
	node := startNode(t, withMetrics())
	noisy, victim, server := addPod(t, node, "hog"), addPod(t, node, "victim"), addPod(t, node, "server")
	id := uint16(endpointID(t, node, "default/hog"))
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			name := bpf.MapCtEst4
			if family.ipv6 {
				name = bpf.MapCtEst6
			}
			m, counts := ctMap(t, node, name), ctMap(t, node, bpf.MapCtFlows)
			share := int(m.MaxEntries()) / 4
			target, done := echoServer(t, "udp", server, server.Addr(family.ipv6))
			defer done()
			if put := occupy(t, m, noisy.Addr(family.ipv6), id, share, unexpired); put != share {
				t.Fatalf("%d of %d flows fit", put, share)
			}
			if err := counts.Put(uint32(id), uint32(share)); err != nil {
				t.Fatal(err)
			}
			before := dropsFor(t, node, events.FlowsShare)
			for i := range 3 {
				hog := dial(t, noisy, "udp", target)
				if err := exchange(hog); err != nil {
					t.Errorf("the first datagram of the hog's flow %d: %v", share+i+1, err)
				}
				if exchangeWithin(noReplyTimeout, hog) == nil { // the second one would establish the flow
					t.Errorf("the hog's flow %d passes beyond its share", share+i+1)
				}
				conn, err := talk("udp", victim, target)
				if err != nil {
					t.Errorf("the victim's flow %d: %v", i, err)
					continue
				}
				_ = conn.Close()
			}
			awaitDrops(t, node, events.FlowsShare, before+3)
			occupy(t, m, noisy.Addr(family.ipv6), id, share, expired)
			awaitCapacity(t, noisy, target)
		})
	}
}

// Flows of a deleted pod are removed at once, regardless of their initiator, and other flows stay.
func TestPrivilegedConntrack_DeletedPod_FlowsAreRemoved(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b, c := addPod(t, node, "a"), addPod(t, node, "b"), addPod(t, node, "c")
	for _, family := range families {
		defer converse(t, "tcp", a, b, b.Addr(family.ipv6)).close()
		defer converse(t, "tcp", b, c, c.Addr(family.ipv6)).close()
		defer converse(t, "udp", a, c, c.Addr(family.ipv6)).close()
	}
	if flows := flowsOf(t, node, "--pod=default/b"); len(flows) != 4 {
		t.Fatalf("flows of b: %+v", flows)
	}
	if err := b.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if flows := flowsOf(t, node); len(flows) != 2 || slices.ContainsFunc(flows, func(f tracked) bool { return f.To.Pod != "default/c" }) {
			return fmt.Errorf("%+v", flows)
		}
		return nil
	})
}
