package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// streamPort is the port that the policies of both states allow. Each state also allows one of the following ports, which identifies the state.
const streamPort = 7000

// instant measures the number of lost datagrams, and the duration of the loss, for traffic that the policy allows before and after a change. A rule is
// replaced while the agent runs; labels of both pods and the policy change together while the agent is stopped.
func (b *bench) instant(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	s := switching{Node: node}
	if err := s.write(labelled("app"), s.policy("app", 0)); err != nil {
		return err
	}
	if s.client, err = node.AddPod(ctx, "client"); err != nil {
		return err
	}
	if s.server, err = node.AddPod(ctx, "server"); err != nil { // both are removed with the node
		return err
	}
	for state := range 2 {
		conn, err := responder(s.server, s.marker(state))
		if err != nil {
			return err
		}
		defer conn.Close()
	}
	if err := s.inForce(ctx, 0); err != nil {
		return err
	}
	stream, err := startStream(s.client, s.server, netip.AddrPortFrom(s.server.Addr(false), streamPort))
	if err != nil {
		return err
	}
	defer stream.stop()

	live, err := s.rounds(ctx, stream, b.atMost(30), func(state int) error { return s.write("", s.policy("app", state)) })
	if err != nil {
		return fmt.Errorf("a rule is replaced: %w", err)
	}
	total := 0
	for _, l := range live {
		total += l.count
	}
	b.report(fmt.Sprintf("datagrams lost while a rule is replaced, %d times", len(live)), fmt.Sprint(total),
		figures.Value{Number: float64(total), Unit: "datagrams"}, lostBudget)

	down, err := s.rounds(ctx, stream, b.atMost(10), func(state int) error {
		label := []string{"app", "application"}[state]
		return errors.Join(node.KillAgent(ctx), s.write(labelled(label), s.policy(label, state)), node.StartAgent(), waitReady(ctx, node))
	})
	if err != nil {
		return fmt.Errorf("labels and policy change while the agent is down: %w", err)
	}
	var spans []time.Duration
	var counts []int
	for _, l := range down {
		spans, counts = append(spans, l.last-l.first), append(counts, l.count)
	}
	b.report(fmt.Sprintf("datagrams lost when labels and policy changed while the agent was down, max of %d", len(down)), fmt.Sprint(slices.Max(counts)),
		figures.Value{Number: float64(slices.Max(counts)), Unit: "datagrams"}, unlimited)
	b.promised("span of those losses, from the first to the last datagram", spans, instantBudget)
	return stream.stop()
}

// switching is a node with a client and a server whose policy has two states. Both states allow the stream with different entries.
type switching struct {
	*nodekit.Node
	client, server *nodekit.Pod
}

func (s switching) marker(state int) netip.AddrPort {
	return netip.AddrPortFrom(s.server.Addr(false), uint16(streamPort+1+state))
}

// policy isolates both pods regardless of their labels, and allows the client by its label. Labels of one state with the policy of the other allow no
// traffic.
func (s switching) policy(label string, state int) string {
	ports := []string{fmt.Sprintf("{protocol: UDP, port: %d}", streamPort), fmt.Sprintf("{protocol: UDP, port: 6000, endPort: %d}", streamPort)}
	return policyManifest("isolated", "", "Ingress") + policyManifest("switching", label+": server", "Ingress",
		fmt.Sprintf("{from: [{podSelector: {matchLabels: {%s: client}}}], ports: [%s, {protocol: UDP, port: %d}]}", label, ports[state], streamPort+1+state))
}

// labelled returns the manifests of both pods, each labelled with its name.
func labelled(label string) string {
	text := ""
	for _, name := range []string{"client", "server"} {
		text += fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: %s, labels: {%s: %s}}, spec: {containers: [{name: c}]}}\n",
			name, label, name)
	}
	return text
}

// write replaces the manifests of the policy and, unless they are empty, of the pods.
func (s switching) write(pods, policy string) error {
	if pods != "" {
		if err := s.WriteManifest("pods.yaml", pods); err != nil {
			return err
		}
	}
	return s.WriteManifest("policies.yaml", policy)
}

// inForce waits until the port of a state accepts requests.
func (s switching) inForce(ctx context.Context, state int) error {
	requests := startRequests(s.client, s.marker(state))
	_, err := requests.replied(ctx, time.Now())
	return errors.Join(err, requests.stop())
}

// rounds switches the state n times, rounded up to an even number so that it ends with state 0, and returns the losses of each switch.
func (s switching) rounds(ctx context.Context, stream *stream, n int, change func(state int) error) (losses []loss, err error) {
	for i := range 2 * ((n + 1) / 2) {
		state, from := (i+1)%2, stream.number()
		if err := errors.Join(change(state), s.inForce(ctx, state)); err != nil {
			return nil, err
		}
		lost, err := stream.lost(ctx, from)
		if err != nil {
			return nil, err
		}
		losses = append(losses, lost)
	}
	return losses, nil
}

// stream sends numbered datagrams from one place to another, about every 0.1 ms.
type stream struct {
	conn  *net.UDPConn
	group errgroup.Group
	stop  func() error

	mu      sync.Mutex // guards the fields below
	sent    []time.Duration
	arrived []bool // by number; may be shorter than sent
}

// loss counts the missing datagrams, with the sending times of the first and the last one.
type loss struct {
	count       int
	first, last time.Duration
}

func startStream(from, to nodekit.NetNS, at netip.AddrPort) (*stream, error) {
	s := &stream{}
	if err := nodekit.Bind(to, func() (err error) {
		s.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", at, err)
	}
	_ = s.conn.SetReadBuffer(4 << 20) // the kernel limits the size
	ctx, cancel := context.WithCancel(context.Background())
	s.group.Go(func() error { return from.Do(func() error { return s.send(ctx, at) }) })
	s.group.Go(func() error { s.receive(); return nil })
	s.stop = sync.OnceValue(func() error { cancel(); return errors.Join(s.conn.Close(), s.group.Wait()) })
	return s, nil
}

func (s *stream) send(ctx context.Context, at netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	began, pace, buffer := time.Now(), unix.NsecToTimespec(50_000), make([]byte, 8)
	for ctx.Err() == nil {
		s.mu.Lock()
		binary.BigEndian.PutUint64(buffer, uint64(len(s.sent)))
		s.sent = append(s.sent, time.Since(began))
		s.mu.Unlock()
		_ = unix.Sendto(fd, buffer, 0, sockaddr(at)) // an unsent datagram counts as missing
		_ = unix.Nanosleep(&pace, nil)
	}
	return nil
}

// receive records datagrams until the socket is closed.
func (s *stream) receive() {
	buffer := make([]byte, 8)
	for {
		n, _, err := s.conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		if n != len(buffer) {
			continue
		}
		number := int(binary.BigEndian.Uint64(buffer))
		s.mu.Lock()
		for len(s.arrived) <= number {
			s.arrived = append(s.arrived, false)
		}
		s.arrived[number] = true
		s.mu.Unlock()
	}
}

// number returns the number of the next datagram.
func (s *stream) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

// lost waits until a later datagram has arrived and returns the missing datagrams from a number on.
func (s *stream) lost(ctx context.Context, from int) (lost loss, err error) {
	to := s.number()
	if err := await(ctx, time.Millisecond, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.arrived) <= to {
			return errors.New("the stream does not arrive")
		}
		return nil
	}); err != nil {
		return loss{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := from; i < to; i++ {
		if s.arrived[i] {
			continue
		}
		if lost.count++; lost.count == 1 {
			lost.first = s.sent[i]
		}
		lost.last = s.sent[i]
	}
	return lost, nil
}
