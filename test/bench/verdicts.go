package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	selectedEndpoints = 100                    // endpoints that a changing policy selects
	flips             = 100                    // changes of each kind
	probePace         = 500 * time.Microsecond // pause of a sender after each round of probes, which leaves CPU time on a machine with two CPUs
	silence           = 200                    // consecutive lost probes after which a denial counts as effective
	probePort         = 7000
)

// verdicts measures the time from the rename of a policy's file into place until the policy applies to packets, with evaluated endpoints. It takes the sending
// time of the first probe that was forwarded, or of the last.
func (b *bench) verdicts(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	names := make([]string, selectedEndpoints)
	for i := range names {
		names[i] = fmt.Sprintf("judged-%d", i)
	}
	if err := errors.Join(node.WriteManifest("judged.yaml", podManifests("judged", names...)),
		node.WriteManifest("prober.yaml", podManifests("prober", "prober"))); err != nil {
		return err
	}
	sender, err := node.AddPod(ctx, "prober")
	if err != nil {
		return err
	}
	defer sender.Close()
	p := prober{began: time.Now()}
	for i, name := range names {
		pod, err := node.AddPod(ctx, name)
		if err != nil {
			return err
		}
		defer pod.Close()
		if i == 0 || i == len(names)-1 { // the first and the last in any order
			t, err := newTarget(pod)
			if err != nil {
				return err
			}
			defer t.conn.Close()
			p.targets = append(p.targets, t)
		}
	}
	probing, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return sender.Do(func() error { return p.run(probing) }) })
	defer func() { stop(); _ = group.Wait() }()

	one := func(rule string) string { return policyManifest("judged", "role: judged", "Ingress", rule) }
	each := func(rule string) string {
		var b strings.Builder
		for _, name := range names {
			b.WriteString(policyManifest(name, "app: "+name, "Ingress", rule))
		}
		return b.String()
	}
	for _, kind := range []struct {
		name string
		text func(rule string) string
	}{{"one policy", one}, {"a policy for each", each}} {
		if err := b.flip(ctx, node, &p, kind.name, kind.text); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return b.policyMemory(ctx, node)
}

// flip changes policies back and forth.
func (b *bench) flip(ctx context.Context, node *nodekit.Node, p *prober, name string, text func(rule string) string) error {
	rule := func(port int) string {
		return text(fmt.Sprintf("{from: [{podSelector: {matchLabels: {role: prober}}}], ports: [{protocol: UDP, port: %d}]}", port))
	}
	allow, deny := rule(probePort), rule(probePort+1)
	if _, err := p.change(ctx, node, "policies.yaml", deny, p.lost); err != nil {
		return err
	}
	var opened, closed []time.Duration
	for range flips {
		time.Sleep(rand.N(20 * time.Millisecond)) // decouples the changes from periodic work
		open, err := p.change(ctx, node, "policies.yaml", allow, p.arrived)
		if err != nil {
			return fmt.Errorf("allow: %w", err)
		}
		shut, err := p.change(ctx, node, "policies.yaml", deny, p.lost)
		if err != nil {
			return fmt.Errorf("deny: %w", err)
		}
		opened, closed = append(opened, open), append(closed, shut)
	}
	for _, way := range []struct {
		name string
		took []time.Duration
	}{{"deny to allow", opened}, {"allow to deny", closed}} {
		p99 := percentile(way.took, 99)
		b.report(fmt.Sprintf("policy written to verdict, %d endpoints, %s, %s, p50 (p99)", selectedEndpoints, name, way.name),
			fmt.Sprintf("%s (%s)", show(median(way.took)), show(p99)), figures.Time(p99), verdictBudget)
	}
	return nil
}

// prober sends probes to all targets and records which have arrived. Its times are relative to began.
type prober struct {
	began   time.Time
	targets []*target
	sent    atomic.Int64 // number of the last probe to all
}

// target is an endpoint that receives probes.
type target struct {
	addr        netip.AddrPort
	conn        *net.UDPConn
	first, last atomic.Pointer[probe] // latest received probes; nil if there is none; first is reset at each change
}

// probe is the content of a datagram.
type probe struct {
	number int64
	sent   time.Duration
}

func newTarget(pod *nodekit.Pod) (*target, error) {
	t := &target{addr: netip.AddrPortFrom(pod.Addr(false), probePort)}
	if err := pod.Do(func() (err error) {
		t.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(t.addr))
		return err
	}); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", t.addr, err)
	}
	go t.receive()
	return t, nil
}

// receive records probes until the socket is closed.
func (t *target) receive() {
	buffer := make([]byte, 16)
	for {
		n, _, err := t.conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		if n != len(buffer) {
			continue
		}
		p := &probe{int64(binary.BigEndian.Uint64(buffer)), time.Duration(binary.BigEndian.Uint64(buffer[8:]))}
		t.first.CompareAndSwap(nil, p)
		t.last.Store(p)
	}
}

// run sends until the context ends. It runs in the sender's namespace.
func (p *prober) run(ctx context.Context) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	pace := unix.NsecToTimespec(probePace.Nanoseconds())
	buffer := make([]byte, 16)
	for number := int64(1); ctx.Err() == nil; number++ {
		for _, t := range p.targets {
			binary.BigEndian.PutUint64(buffer, uint64(number))
			binary.BigEndian.PutUint64(buffer[8:], uint64(time.Since(p.began)))
			to := &unix.SockaddrInet4{Port: int(t.addr.Port()), Addr: t.addr.Addr().As4()}
			_ = unix.Sendto(fd, buffer, 0, to) // lost probes are part of the measurement
		}
		p.sent.Store(number)
		_ = unix.Nanosleep(&pace, nil) // a signal shortens the pause, which is harmless
	}
	return nil
}

// change writes a manifest and waits until it is effective for all targets. It returns the time until the last target followed.
func (p *prober) change(ctx context.Context, node *nodekit.Node, file, manifest string, done func(*target) (time.Duration, bool)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, t := range p.targets {
		t.first.Store(nil)
	}
	written := time.Since(p.began)
	if err := node.WriteManifest(file, manifest); err != nil {
		return 0, err
	}
	latest := written
	for _, t := range p.targets {
		for {
			at, is := done(t)
			if is {
				latest = max(latest, at)
				break
			}
			select {
			case <-ctx.Done():
				return 0, fmt.Errorf("%s does not have the new verdict: %w", t.addr, ctx.Err())
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return latest - written, nil
}

// arrived returns the sending time of the first received probe since the change.
func (p *prober) arrived(t *target) (time.Duration, bool) {
	first := t.first.Load()
	if first == nil {
		return 0, false
	}
	return first.sent, true
}

// lost returns the sending time of the last received probe, once enough later probes are lost.
func (p *prober) lost(t *target) (time.Duration, bool) {
	last := t.last.Load()
	if last == nil {
		return 0, p.sent.Load() > silence
	}
	return last.sent, p.sent.Load()-last.number > silence
}
