package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typednetworkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"
)

// latencies holds the times from a policy change until packets obey it.
type latencies struct {
	fromWrite  times // since the request was sent
	fromAnswer times // since the API server's answer; 0 if packets obeyed earlier
	control    times // from the request to its event in a watch of the benchmark, which asks no agent
}

// verdicts changes a policy of a pod repeatedly, so that it allows and denies another pod alternately. The other pod sends one datagram per millisecond
// meanwhile.
func (m *measurement) verdicts(ctx context.Context, writes int) (l latencies, err error) {
	server, err := m.newPod(ctx, "verdict-server", "verdict-server")
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, server.remove(ctx)) }()
	client, err := m.newPod(ctx, "verdict-client", "verdict-client")
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, client.remove(ctx)) }()
	p, err := startProbe(client, server)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	typed, err := kubernetes.NewForConfig(m.cluster.Config())
	if err != nil {
		return l, err
	}
	policies := typed.NetworkingV1().NetworkPolicies(namespace)
	if _, err := policies.Create(ctx, verdictPolicy(false), metav1.CreateOptions{}); err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, policies.Delete(ctx, verdictName, metav1.DeleteOptions{})) }()
	if _, err := p.changed(ctx, false, time.Now()); err != nil {
		return l, err
	}
	events, err := watchVersions(ctx, policies)
	if err != nil {
		return l, err
	}
	defer events.stop()
	for i := range writes {
		allow := i%2 == 0
		sent := time.Now()
		written, err := policies.Update(ctx, verdictPolicy(allow), metav1.UpdateOptions{})
		if err != nil {
			return l, err
		}
		answered := time.Now()
		obeyed, err := p.changed(ctx, allow, sent)
		if err != nil {
			return l, fmt.Errorf("change %d, allow %v: %w", i, allow, err)
		}
		l.fromWrite = append(l.fromWrite, obeyed.Sub(sent))
		l.fromAnswer = append(l.fromAnswer, max(0, obeyed.Sub(answered)))
		seen, err := events.of(ctx, written.ResourceVersion)
		if err != nil {
			return l, fmt.Errorf("change %d: %w", i, err)
		}
		l.control = append(l.control, seen.Sub(sent))
	}
	return l, nil
}

// versions receives the versions of the policy in a watch.
type versions struct {
	watch   watch.Interface
	arrived chan arrival
	running sync.WaitGroup
}

// arrival is the time at which the event of a version arrived.
type arrival struct {
	version string
	at      time.Time
}

func watchVersions(ctx context.Context, policies typednetworkingv1.NetworkPolicyInterface) (*versions, error) {
	w, err := policies.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, verdictName).String()})
	if err != nil {
		return nil, fmt.Errorf("watch the policy of the benchmark: %w", err)
	}
	v := &versions{watch: w, arrived: make(chan arrival, 64)}
	v.running.Go(func() {
		defer close(v.arrived)
		for event := range w.ResultChan() {
			if o, ok := event.Object.(*networkingv1.NetworkPolicy); ok {
				select {
				case v.arrived <- arrival{o.ResourceVersion, time.Now()}:
				case <-ctx.Done():
				}
			}
		}
	})
	return v, nil
}

// of returns when the event of a version arrived.
func (v *versions) of(ctx context.Context, version string) (time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case a, open := <-v.arrived:
			if !open {
				return time.Time{}, errors.New("the API server has ended the watch of the policy")
			}
			if a.version == version {
				return a.at, nil
			}
		}
	}
}

func (v *versions) stop() {
	v.watch.Stop()
	for range v.arrived { // the last events
	}
	v.running.Wait()
}

const verdictName = "bench-verdict"

func verdictPolicy(allow bool) *networkingv1.NetworkPolicy {
	from := map[bool]string{true: "verdict-client", false: "no-pod-at-all"}[allow]
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: verdictName, Namespace: namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "verdict-server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": from}}}}}}}}
}

// probe sends numbered datagrams from one pod to another, which answers them.
type probe struct {
	sockets []net.Conn
	running sync.WaitGroup

	lock     sync.Mutex
	sent     []time.Time // by number
	answered int         // highest answered number; -1 for none
	heard    time.Time   // time of the latest answer
}

const (
	probeInterval = time.Millisecond
	probePort     = 7777
	silence       = 300 * time.Millisecond // time without an answer after which packets count as denied
	obeyWithin    = 30 * time.Second
)

func startProbe(client, server *pod) (p *probe, err error) {
	p = &probe{answered: -1}
	var at, from *net.UDPConn
	if err := server.do(func() (err error) {
		at, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.addr, probePort)))
		return err
	}); err != nil {
		return nil, err
	}
	p.sockets = append(p.sockets, at)
	if err := client.do(func() (err error) {
		from, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.addr, probePort)))
		return err
	}); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	p.sockets = append(p.sockets, from)
	p.running.Go(func() { echo(at) })
	p.running.Go(func() { p.receive(from) })
	p.running.Go(func() { p.send(from) })
	return p, nil
}

func (p *probe) stop() (err error) {
	for _, s := range p.sockets {
		err = errors.Join(err, s.Close())
	}
	p.running.Wait()
	return err
}

// echo answers until the socket is closed.
func echo(socket *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = socket.WriteToUDPAddrPort(buffer[:n], from)
		}
	}
}

func (p *probe) send(socket *net.UDPConn) {
	ticks := time.NewTicker(probeInterval)
	defer ticks.Stop()
	for range ticks.C {
		p.lock.Lock()
		number := len(p.sent)
		p.sent = append(p.sent, time.Now())
		p.lock.Unlock()
		if _, err := socket.Write(binary.BigEndian.AppendUint64(nil, uint64(number))); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (p *probe) receive(socket *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		n, err := socket.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == 8 {
			p.lock.Lock()
			p.answered, p.heard = max(p.answered, int(binary.BigEndian.Uint64(buffer))), time.Now()
			p.lock.Unlock()
		}
	}
}

// changed waits until packets are answered (allowed) or not. It returns the sending time of the first packet after since that has the new verdict.
func (p *probe) changed(ctx context.Context, allowed bool, since time.Time) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, obeyWithin)
	defer cancel()
	p.lock.Lock()
	known := p.answered
	p.lock.Unlock()
	for {
		p.lock.Lock()
		answered, heard := p.answered, p.heard
		var first time.Time
		switch {
		case allowed && answered > known:
			first = p.sent[answered]
		case !allowed && time.Since(heard) > silence && time.Since(since) > silence && answered+1 < len(p.sent):
			first = p.sent[answered+1]
		}
		p.lock.Unlock()
		if !first.IsZero() {
			return first, nil
		}
		select {
		case <-ctx.Done():
			return first, fmt.Errorf("packets do not get the new verdict for %s: %w", obeyWithin, ctx.Err())
		case <-time.After(probeInterval / 2):
		}
	}
}
