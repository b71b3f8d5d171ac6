package main

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	requests    = 2000     // of one round of request-response
	connections = 100      // of one round
	streamSize  = 64 << 20 // bytes of one round of a stream
)

// side is one pair of ends with its results.
type side struct {
	name      string
	path      map[bool]path // by IPv6
	took      []time.Duration
	connected []time.Duration
	streamed  []time.Duration
}

// traffic compares pairs of pods (without policies, with one rule at each end, with many entries) with two namespaces that one bare veth pair joins, and with
// two namespaces that a redirecting program joins.
func (b *bench) traffic(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	bare, err := nodekit.NewBarePair()
	if err != nil {
		return err
	}
	defer bare.Close()
	redirected, err := nodekit.NewRedirectedPair()
	if err != nil {
		return err
	}
	defer redirected.Close()
	sides := []*side{sideOf("bare veth", bare), sideOf("a program that redirects", redirected)}
	for _, pair := range pairs {
		side, closePods, err := pair.side(ctx, node)
		if err != nil {
			return err
		}
		defer closePods()
		sides = append(sides, side)
	}
	for _, ipv6 := range []bool{false, true} {
		for _, s := range sides {
			s.took, s.connected, s.streamed = nil, nil, nil
		}
		// Twice as many rounds, because the differences are about one percent. Each round starts with another side.
		for round := range 2 * b.rounds {
			for i := range sides {
				if err := sides[(i+round)%len(sides)].round(ipv6); err != nil {
					return err
				}
			}
		}
		b.showTraffic(map[bool]string{false: "IPv4", true: "IPv6"}[ipv6], sides)
	}
	return nil
}

func sideOf(name string, pair *nodekit.BarePair) *side {
	s := &side{name: name, path: map[bool]path{}}
	for _, ipv6 := range []bool{false, true} {
		s.path[ipv6] = path{client: pair.Client(), server: pair.Server(), addr: pair.Addr(ipv6)}
	}
	return s
}

func (s *side) round(ipv6 bool) error {
	rr, err := s.path[ipv6].requestResponse()
	if err != nil {
		return fmt.Errorf("request-response, %s: %w", s.name, err)
	}
	connect, err := s.path[ipv6].connects()
	if err != nil {
		return fmt.Errorf("connections, %s: %w", s.name, err)
	}
	stream, err := s.path[ipv6].stream()
	if err != nil {
		return fmt.Errorf("stream, %s: %w", s.name, err)
	}
	s.took, s.connected, s.streamed = append(s.took, rr), append(s.connected, connect), append(s.streamed, stream)
	return nil
}

// showTraffic prints all sides beside the bare pair, pods beside the redirecting program, and pods with policies beside pods without.
func (b *bench) showTraffic(family string, sides []*side) {
	bare, redirected, without := sides[0], sides[1], sides[2]
	rate := func(d []time.Duration) string { return fmt.Sprintf("%.0f/s", float64(time.Second)/float64(median(d))) }
	gbit := func(d []time.Duration) string {
		return fmt.Sprintf("%.1f Gbit/s", streamSize*8/median(d).Seconds()/1e9)
	}
	line := func(what string, shown func([]time.Duration) string, ours, control []time.Duration, budget figures.Limit) {
		b.sheet.Add(what, shown(ours), shown(control), figures.Of(faster(ours, control), 1), budget)
	}
	line("request-response "+family+", one CPU, "+redirected.name, rate, redirected.took, bare.took, unlimited)
	for _, s := range sides[2:] {
		line("request-response "+family+", one CPU, "+s.name, rate, s.took, bare.took, unlimited)
		low, high := interval(s.took, redirected.took)
		line(fmt.Sprintf("request-response %s against %s, %s (%.3f to %.3f)", family, redirected.name, s.name, low, high), rate, s.took, redirected.took, requestBudget)
	}
	for i, s := range sides[3:] {
		line("request-response "+family+" against no policy, "+s.name, rate, s.took, without.took, []figures.Limit{oneRuleBudget, manyRulesBudget}[i])
	}
	for _, s := range sides[1:] {
		line("connections "+family+", one CPU, "+s.name, rate, s.connected, bare.connected, unlimited)
	}
	line("stream "+family+", "+without.name, gbit, without.streamed, bare.streamed, unlimited)
	line("stream "+family+", "+sides[4].name, gbit, sides[4].streamed, bare.streamed, unlimited)
}

// faster returns the speed of ours relative to the control: the median of the rounds' ratios, because a disturbance of a round affects both sides.
func faster(ours, control []time.Duration) float64 {
	ratios := ratios(ours, control)
	return ratios[len(ratios)/2]
}

// ratios returns the sorted ratios of the rounds.
func ratios(ours, control []time.Duration) []float64 {
	all := make([]float64, len(ours))
	for i := range ours {
		all[i] = float64(control[i]) / float64(ours[i])
	}
	slices.Sort(all)
	return all
}

// interval returns the 95 % confidence interval of the median ratio: the ratios whose ranks differ from the middle by 0.98 times the square root of the
// number of rounds (the normal approximation of the sign test).
func interval(ours, control []time.Duration) (low, high float64) {
	all := ratios(ours, control)
	middle, off := float64(len(all)-1)/2, 0.98*math.Sqrt(float64(len(all)))
	return all[max(0, int(math.Floor(middle-off)))], all[min(len(all)-1, int(math.Ceil(middle+off)))]
}

// pairOfPods is a client and a server on one node.
type pairOfPods struct {
	name, suffix string
	entries      int // in the policies of each end; 0 for no policies
}

var pairs = []pairOfPods{{"no policy", "none", 0}, {"1 rule", "one", 1}, {"16,000 entries", "many", 16000}}

// side attaches the pods and waits until their policies are enforced.
func (p pairOfPods) side(ctx context.Context, node *nodekit.Node) (_ *side, closePods func(), err error) {
	names := []string{"client-" + p.suffix, "server-" + p.suffix}
	text := podManifests("pair", names...)
	if p.entries > 0 {
		text += policyManifest("client-"+p.suffix, "app: client-"+p.suffix, "Egress", p.rules("to", "server-")...) +
			policyManifest("server-"+p.suffix, "app: server-"+p.suffix, "Ingress", p.rules("from", "client-")...)
	}
	if err := node.WriteManifest(p.suffix+".yaml", text); err != nil {
		return nil, nil, err
	}
	pods := make([]*nodekit.Pod, len(names))
	closePods = func() {
		for _, pod := range pods {
			if pod != nil {
				_ = pod.Close() // the node is closed as well
			}
		}
	}
	for i, name := range names {
		if pods[i], err = node.AddPod(ctx, name); err != nil {
			closePods()
			return nil, nil, err
		}
	}
	for _, pod := range pods { // the number of entries is complete only with the peer
		if err := inForce(ctx, node, pod, p.entries); err != nil {
			closePods()
			return nil, nil, err
		}
	}
	s := &side{name: p.name, path: map[bool]path{}}
	for _, ipv6 := range []bool{false, true} {
		s.path[ipv6] = path{client: pods[0], server: pods[1], addr: pods[1].Addr(ipv6)}
	}
	return s, closePods, nil
}

// rules returns rules that allow the other end and, for more than one entry, 100 ports for each of enough networks.
func (p pairOfPods) rules(peer, other string) []string {
	rules := []string{fmt.Sprintf("{%s: [{podSelector: {matchLabels: {app: %s%s}}}]}", peer, other, p.suffix)}
	if p.entries == 1 {
		return rules
	}
	const portsEach = 100
	var networks, ports []string
	for i := range p.entries / portsEach {
		networks = append(networks, fmt.Sprintf("{ipBlock: {cidr: 172.16.%d.0/24}}", i))
	}
	for i := range portsEach {
		ports = append(ports, fmt.Sprintf("{protocol: TCP, port: %d}", 1000+2*i)) // adjacent ports would be merged into a range
	}
	return append(rules, fmt.Sprintf("{%s: [%s], ports: [%s]}", peer, strings.Join(networks, ", "), strings.Join(ports, ", ")))
}

// path is two ends and the address of the second.
type path struct {
	client, server nodekit.NetNS
	addr           netip.Addr
	port           uint16         // of the server, 0 for any
	service        netip.AddrPort // destination of clients instead of the server; the zero value for none
}

// requestResponse returns the p50 duration of one transaction. Both ends run blocking system calls on threads of the same CPU, which excludes the scheduler's
// choice of a CPU and Go's poller from the measurement.
func (p path) requestResponse() (time.Duration, error) {
	took, err := p.exchanges(requests)
	return median(took), err
}

// exchanges returns the durations of count transactions.
func (p path) exchanges(count int) (took []time.Duration, err error) {
	took = make([]time.Duration, 0, count)
	err = p.connected(func(fd int) error {
		buffer := make([]byte, 1)
		for {
			if n, err := read(fd, buffer); n <= 0 {
				return err
			}
			if _, err := write(fd, buffer); err != nil {
				return err
			}
		}
	}, func(fd int) error {
		buffer := make([]byte, 1)
		for range count {
			d, err := timed(func() error {
				if _, err := write(fd, buffer); err != nil {
					return err
				}
				_, err := read(fd, buffer)
				return err
			})
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		return nil
	}, true)
	return took, err
}

// stream returns the time for streamSize bytes, until the server has read the last byte.
func (p path) stream() (took time.Duration, err error) {
	err = p.connected(func(fd int) error {
		buffer := make([]byte, 256<<10)
		for left := streamSize; left > 0; {
			n, err := read(fd, buffer)
			if err != nil || n == 0 {
				return err
			}
			left -= n
		}
		_, err := write(fd, buffer[:1])
		return err
	}, func(fd int) (err error) {
		buffer := make([]byte, 256<<10)
		took, err = timed(func() error {
			for left := streamSize; left > 0; {
				n, err := write(fd, buffer[:min(left, len(buffer))])
				if err != nil {
					return err
				}
				left -= n
			}
			_, err := read(fd, buffer[:1])
			return err
		})
		return err
	}, false)
	return took, err
}

// connects returns the p50 time to establish a connection. The client resets the connection, so that neither end keeps state.
func (p path) connects() (time.Duration, error) {
	took := make([]time.Duration, 0, connections)
	err := p.listening(func(listener int) error {
		if err := pin(); err != nil {
			return err
		}
		for range connections {
			fd, err := accept(listener)
			if err != nil {
				return err
			}
			_ = unix.Close(fd) // nothing was sent
		}
		return nil
	}, func(name unix.Sockaddr) error {
		if err := pin(); err != nil {
			return err
		}
		for range connections {
			d, err := p.connectOnce(name)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		return nil
	})
	return median(took), err
}

func (p path) connectOnce(name unix.Sockaddr) (time.Duration, error) {
	fd, err := unix.Socket(domain(p.addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	return timed(func() error { return unix.Connect(fd, name) })
}

// connected runs both ends of one TCP connection.
func (p path) connected(serve, call func(fd int) error, oneCPU bool) error {
	return p.listening(func(listener int) error {
		fd, err := accept(listener)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := prepare(fd, oneCPU); err != nil {
			return err
		}
		return serve(fd)
	}, func(name unix.Sockaddr) error {
		fd, err := unix.Socket(domain(p.addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := prepare(fd, oneCPU); err != nil {
			return err
		}
		if err := unix.Connect(fd, name); err != nil {
			return fmt.Errorf("connect to %s: %w", p.addr, err)
		}
		return call(fd)
	})
}

// listening runs a server with a listening socket and a client with the server's address, each on a separate thread.
func (p path) listening(serve func(listener int) error, call func(unix.Sockaddr) error) error {
	listening, served := make(chan unix.Sockaddr, 1), make(chan error, 1)
	go func() {
		served <- p.server.Do(func() error {
			defer close(listening)
			listener, err := listen(p.addr, p.port)
			if err != nil {
				return err
			}
			defer unix.Close(listener)
			name, err := unix.Getsockname(listener)
			if err != nil {
				return err
			}
			if p.service.IsValid() {
				name = sockaddr(p.service)
			}
			listening <- name
			return serve(listener)
		})
	}()
	name, ok := <-listening
	if !ok {
		return <-served
	}
	if err := p.client.Do(func() error { return call(name) }); err != nil {
		return err
	}
	return <-served
}

// read, write and accept retry a call that a signal of Go's scheduler interrupted: the kernel does not restart calls on a socket with a timeout (signal(7)).
func read(fd int, buffer []byte) (int, error)  { return retried(unix.Read, fd, buffer) }
func write(fd int, buffer []byte) (int, error) { return retried(unix.Write, fd, buffer) }

func accept(listener int) (int, error) {
	for {
		fd, _, err := unix.Accept(listener)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func retried(call func(int, []byte) (int, error), fd int, buffer []byte) (int, error) {
	for {
		n, err := call(fd, buffer)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// prepare sets a timeout, disables Nagle's algorithm and, with oneCPU, binds the thread to the first CPU.
func prepare(fd int, oneCPU bool) error {
	if err := limit(fd); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if oneCPU {
		return pin()
	}
	return nil
}

// limit sets the timeouts of a socket to 10 s.
func limit(fd int) error {
	limit := unix.Timeval{Sec: 10}
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	return nil
}

// pin binds the thread to the first CPU.
func pin() error {
	var set unix.CPUSet
	set.Set(0)
	return unix.SchedSetaffinity(0, &set)
}

func domain(addr netip.Addr) int {
	if addr.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
}

func listen(addr netip.Addr, port uint16) (fd int, err error) {
	if fd, err = unix.Socket(domain(addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	if err = limit(fd); err == nil { // closing connections of the previous round may still exist
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, port)))
	}
	if err == nil {
		err = unix.Listen(fd, connections)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("listen at %s: %w", addr, err)
	}
	return fd, nil
}
