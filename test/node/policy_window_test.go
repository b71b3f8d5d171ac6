package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// tap counts by source the packets that arrive in a network namespace, including devices that are created later. It receives all packets that the kernel
// receives, regardless of reports of the datapath.
type tap struct {
	fd   int
	done chan struct{}

	mu    sync.Mutex // guards count and first
	count map[netip.Addr]int
	first map[netip.Addr][]byte // the beginning of the first packet that is not an ICMP error
}

// listenAll attaches a tap to a place until the test ends.
func listenAll(t *testing.T, at nodekit.NetNS) *tap {
	t.Helper()
	tp := &tap{done: make(chan struct{}), count: map[netip.Addr]int{}, first: map[netip.Addr][]byte{}}
	if err := at.Do(func() (err error) {
		const all = 0x0300 // ETH_P_ALL in network order
		if tp.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all); err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		pause := unix.NsecToTimeval(int64(50 * time.Millisecond))
		return errors.Join(unix.SetsockoptTimeval(tp.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &pause),
			unix.SetsockoptInt(tp.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { defer close(tp.done); tp.read(ctx) }()
	t.Cleanup(func() { cancel(); <-tp.done; _ = unix.Close(tp.fd) })
	return tp
}

func (tp *tap) read(ctx context.Context) {
	buffer := make([]byte, 64)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(tp.fd, buffer, 0)
		link, ok := from.(*unix.SockaddrLinklayer)
		if err != nil || !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if source := sourceOf(buffer[:n]); source.IsValid() {
			tp.mu.Lock()
			tp.count[source]++
			if tp.first[source] == nil && !isICMPError(buffer[:n]) {
				tp.first[source] = bytes.Clone(buffer[:n])
			}
			tp.mu.Unlock()
		}
	}
}

// sourceOf returns the source address of an IP packet.
func sourceOf(packet []byte) netip.Addr {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[12:16]))
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[8:24]))
	}
	return netip.Addr{}
}

// isICMPError reports whether an IP packet is an ICMP error.
func isICMPError(packet []byte) bool {
	if packet[0]>>4 == 6 {
		return packet[6] == unix.IPPROTO_ICMPV6 && len(packet) > 40 && packet[40] < 128
	}
	at := int(packet[0]&0xf) * 4
	return packet[9] == unix.IPPROTO_ICMP && len(packet) > at && packet[at] != 0 && packet[at] != 8
}

// from returns the number of packets from any of the addresses.
func (tp *tap) from(addrs ...netip.Addr) (sum int) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, addr := range addrs {
		sum += tp.count[addr]
	}
	return sum
}

// sources returns the addresses of all senders, except of ICMP errors.
func (tp *tap) sources() []netip.Addr {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return slices.SortedFunc(maps.Keys(tp.first), netip.Addr.Compare)
}

// targets is a list of flooded addresses, which may grow meanwhile.
type targets struct {
	mu   sync.Mutex
	list []netip.Addr
}

func (a *targets) add(addrs ...netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, addrs...)
}

func (a *targets) all() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// flood begins new connections from a place to all targets, repeatedly, until the context ends: a datagram and a SYN each, with new sockets. It may begin
// before the place has a device.
func flood(ctx context.Context, from nodekit.NetNS, to *targets, sent *atomic.Int64) error {
	return from.Do(func() error {
		for ctx.Err() == nil {
			for _, addr := range to.all() {
				for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
					if err := begin(kind, addr); err == nil {
						sent.Add(1)
					}
				}
				time.Sleep(time.Millisecond) // pods are added and other tests run on the same CPUs
			}
		}
		return nil
	})
}

// begin sends the first packet of a connection to port 80.
func begin(kind int, to netip.Addr) error {
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	a := attempt{flow: flow{ipv6: to.Is6(), port: 80}, addr: to}
	if err := unix.Connect(fd, a.sockaddr()); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		_, err = unix.Write(fd, []byte("?"))
	}
	return err
}

// No packet passes that policy denies, in either direction, already before ADD returns: pods that may reach only one other pod send to two pods from before
// they have a link, and a denied peer sends to them. The agent is killed at times. The receivers are checked, not reports of the datapath.
func TestPrivilegedPolicy_NoPacketBeforeThePolicy(t *testing.T) {
	t.Parallel()
	const atOnce, killEvery = 4, 5
	pods := times(t, 12, 50)
	ranges := [...]string{"10.244.0.0/28", "fd00:10:244:1::/124"} // so small that all addresses are tried while a pod is being added
	n := newNode(t, nodekit.Options{IPv4CIDR: ranges[0], IPv6CIDR: ranges[1], AgentArgs: []string{"--ipam-release-quarantine=0s"}})
	w := &world{Node: n}
	manifests := map[string]string{"free/victim": "labels: {app: victim}}", "free/open": "labels: {app: open}}", "free/attacker": "labels: {app: attacker}}"}
	for i := range pods {
		manifests[fmt.Sprintf("jail/p%d", i)] = "labels: {app: prisoner}}"
	}
	w.write(t, "pods.yaml", podManifests(manifests))
	w.write(t, "namespaces.yaml", "---\n{apiVersion: v1, kind: Namespace, metadata: {name: free, labels: {team: free}}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: jail}}\n")
	open := "[{namespaceSelector: {matchLabels: {team: free}}, podSelector: {matchLabels: {app: open}}}]"
	w.write(t, "policies.yaml", networkPolicy("jail", "podSelector: {}, policyTypes: [Ingress, Egress], egress: [{to: "+open+"}], ingress: [{from: "+open+"}]"))
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n)
	victim, friend, attacker := w.add(t, "free/victim"), w.add(t, "free/open"), w.add(t, "free/attacker")
	atVictim, atFriend := listenAll(t, victim), listenAll(t, friend)

	ctx, cancel := context.WithCancel(t.Context())
	var attackers errgroup.Group
	defer func() {
		cancel()
		if err := attackers.Wait(); err != nil {
			t.Error(err)
		}
	}()
	var attacks [2]atomic.Int64 // by family
	var round [2]int64          // attacks on all addresses
	for i, text := range ranges {
		attacked, prefix := &targets{}, netip.MustParsePrefix(text)
		for a := prefix.Addr().Next(); prefix.Contains(a); a = a.Next() {
			if prefix.Contains(a.Next()) { // the last one is the broadcast address of IPv4
				attacked.add(a) // of the current or a future pod
			}
		}
		round[i] = 2 * int64(len(attacked.list))
		attackers.Go(func() error { return flood(ctx, attacker, attacked, &attacks[i]) })
	}

	prisoners := &targets{}
	prisoners.add(victim.addrs[:]...)
	prisoners.add(friend.addrs[:]...)
	var packets atomic.Int64
	one := func(i int) error {
		pod, err := n.NewPod(fmt.Sprintf("jail/p%d", i))
		if err != nil {
			return err
		}
		defer func() { _ = pod.Close() }()
		heard := listenAll(t, pod)
		flooding, stop := context.WithCancel(t.Context())
		var group errgroup.Group
		group.Go(func() error { return flood(flooding, pod, prisoners, &packets) })
		defer func() { stop(); _ = group.Wait() }()
		if err := attach(t.Context(), pod); err != nil {
			return err
		}
		addrs := []netip.Addr{pod.Addr(false), pod.Addr(true)}
		// The test waits until the friend has received packets of both families, and the attacker has sent a full round in both. Other pods had the addresses
		// before.
		heard4, heard6 := atFriend.from(addrs[0]), atFriend.from(addrs[1])
		until := [2]int64{attacks[0].Load() + round[0], attacks[1].Load() + round[1]}
		for deadline := time.Now().Add(awaitFor); ; time.Sleep(5 * time.Millisecond) {
			if atFriend.from(addrs[0]) > heard4 && atFriend.from(addrs[1]) > heard6 && attacks[0].Load() > until[0] && attacks[1].Load() > until[1] {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: the friend has heard %d and %d packets", pod.Name, atFriend.from(addrs[0])-heard4, atFriend.from(addrs[1])-heard6)
			}
		}
		if n := atVictim.from(addrs...); n > 0 {
			err = errors.Join(err, fmt.Errorf("%d packets of %s reached the victim", n, pod.Name))
		}
		if n := heard.from(attacker.addrs[:]...); n > 0 {
			err = errors.Join(err, fmt.Errorf("%d packets of the attacker reached %s", n, pod.Name))
		}
		return errors.Join(err, pod.Detach(t.Context()))
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range pods {
		all.Go(func() error {
			if err := one(i); err != nil {
				t.Error(err)
			}
			return nil
		})
		if i%killEvery == killEvery-1 {
			if err := errors.Join(n.KillAgent(t.Context()), n.StartAgent()); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = all.Wait() // each has reported its own error
	t.Logf("%d pods began %d connections, and %d and %d were begun to them", pods, packets.Load(), attacks[0].Load(), attacks[1].Load())
}

// attach adds a pod as a runtime does: again, after a DEL, if the agent was killed meanwhile.
func attach(ctx context.Context, pod *nodekit.Pod) (err error) {
	for range 10 {
		if err = pod.Attach(ctx); err == nil {
			return nil
		}
		if err := pod.Detach(ctx); err != nil {
			return err
		}
	}
	return err
}
