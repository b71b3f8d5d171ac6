package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// nodePair is a pod on each of two nodes, or two namespaces that one veth pair joins.
type nodePair struct {
	cluster *nodekit.Cluster
	path    map[bool]path // by IPv6
	tcp     []time.Duration
	udp     []time.Duration
	bulk    []time.Duration
}

// startPair starts two nodes with a pod each, with agent arguments that set the routing mode.
func (b *bench) startPair(ctx context.Context, args ...string) (_ *nodePair, err error) {
	cluster, err := nodekit.NewPair(nodekit.Options{BinDir: b.bin, AgentArgs: append([]string{installedStop}, args...)})
	if err != nil {
		return nil, err
	}
	p := &nodePair{cluster: cluster, path: map[bool]path{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, cluster.Close())
		}
	}()
	for _, n := range cluster.Nodes {
		if err := n.StartAgent(); err != nil {
			return nil, err
		}
	}
	var pods []*nodekit.Pod
	for _, n := range cluster.Nodes {
		if err := waitReady(ctx, n); err != nil {
			return nil, err
		}
		pod, err := n.AddPod(ctx, "pod-"+n.Name())
		if err != nil {
			return nil, err
		}
		pods = append(pods, pod)
	}
	for _, ipv6 := range []bool{false, true} {
		p.path[ipv6] = path{client: pods[0], server: pods[1], addr: pods[1].Addr(ipv6)}
		if err := reached(ctx, pods[0], pods[1], ipv6); err != nil {
			return nil, err
		}
	}
	for i, n := range cluster.Nodes {
		if err := introduce(n, cluster.Nodes[1-i], pods[1-i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// introduce writes an object for a pod of another node, with the content of its CiliumEndpoint.
func introduce(to, of *nodekit.Node, pod *nodekit.Pod) error {
	return to.WriteManifest("endpoint.yaml", fmt.Sprintf(`{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: %q, namespace: default, uid: far},
  status: {id: 1, networking: {node: %q, addressing: [{ipv4: %q, ipv6: %q}]}}}
`, pod.Name, of.UplinkAddr(false), pod.Addr(false), pod.Addr(true)))
}

// pastStack returns when the network stacks of the nodes no longer forward the pods' packets.
func (p *nodePair) pastStack(ctx context.Context) error {
	for begin := time.Now(); ; {
		before, err := p.forwarded()
		for _, way := range p.path {
			err = errors.Join(err, nodekit.Ping(way.client, way.addr, 56))
		}
		after, failed := p.forwarded()
		if err = errors.Join(err, failed); err != nil || after == before {
			return err
		}
		if ctx.Err() != nil || time.Since(begin) > latest {
			return fmt.Errorf("the stacks of the nodes forward what pods exchange, %d packets of two pings", after-before)
		}
	}
}

// forwarded returns the number of packets that the network stacks of the nodes have forwarded.
func (p *nodePair) forwarded() (packets uint64, err error) {
	for _, n := range p.cluster.Nodes {
		for _, ipv6 := range []bool{false, true} {
			err = errors.Join(err, n.Do(func() error {
				count, err := testnet.Forwarded(ipv6)
				packets += count
				return err
			}))
		}
	}
	return packets, err
}

// reached returns when one pod gets an answer from the other.
func reached(ctx context.Context, from, to *nodekit.Pod, ipv6 bool) error {
	for begin := time.Now(); ; {
		err := nodekit.PingBriefly(from, to.Addr(ipv6), 56)
		if err == nil || ctx.Err() != nil || time.Since(begin) > latest {
			return err
		}
	}
}

// betweenNodes compares request-response between pods of two nodes: with routes against one bare veth pair, and through the tunnel against routes.
func (b *bench) betweenNodes(ctx context.Context) error {
	var pairs []*nodePair
	for _, mode := range []struct {
		args      []string
		pastStack bool
	}{{[]string{"--routing-mode=native", "--auto-direct-node-routes"}, true}, {[]string{"--routing-mode=tunnel"}, true},
		{[]string{"--routing-mode=tunnel", "--underlay-protocol=ipv6"}, false}} {
		p, err := b.startPair(ctx, mode.args...)
		if err == nil && mode.pastStack {
			err = p.pastStack(ctx)
		}
		if err != nil {
			return fmt.Errorf("two nodes with %v: %w", mode.args, err)
		}
		defer p.cluster.Close()
		pairs = append(pairs, p)
	}
	for _, control := range []func() (*nodekit.BarePair, error){nodekit.NewBarePair, nodekit.NewRedirectedNodes} {
		joined, err := control()
		if err != nil {
			return err
		}
		defer joined.Close()
		pairs = append(pairs, &nodePair{path: sideOf("", joined).path})
	}
	for _, ipv6 := range []bool{false, true} {
		for _, p := range pairs {
			p.tcp, p.udp, p.bulk = nil, nil, nil
		}
		for round := range 2 * b.rounds { // each starts with the other pair
			for i := range pairs {
				if err := pairs[(i+round)%len(pairs)].round(ipv6); err != nil {
					return err
				}
			}
		}
		b.showNodes(ipv6, pairs[0], pairs[1], pairs[2], pairs[3], pairs[4])
	}
	return nil
}

// showNodes prints the routing modes beside the bare pair and the pair with redirecting programs. The budgets of tunnels apply to IPv4 inside.
func (b *bench) showNodes(ipv6 bool, native, tunnel, underlayIPv6, bare, redirected *nodePair) {
	family, tcp, udp, bulk, underlay := "IPv4", tunnelTCPBudget, tunnelUDPBudget, tunnelBulkBudget, underlayIPv6Budget
	if ipv6 {
		family, tcp, udp, bulk, underlay = "IPv6", unlimited, unlimited, unlimited, unlimited
	}
	for _, row := range []struct {
		what          string
		ours, control []time.Duration
		budget        figures.Limit
	}{
		{"request-response by TCP, programs that redirect against a bare veth", redirected.tcp, bare.tcp, unlimited},
		{"request-response by TCP, routes against programs that redirect", native.tcp, redirected.tcp, unlimited},
		{"request-response by TCP, routes against a bare veth", native.tcp, bare.tcp, nativeTCPBudget},
		{"request-response by UDP, routes against a bare veth", native.udp, bare.udp, unlimited},
		{"request-response by TCP, tunnel against routes", tunnel.tcp, native.tcp, tcp},
		{"request-response by UDP, tunnel against routes", tunnel.udp, native.udp, udp},
		{"request-response by TCP, tunnel over IPv6 against routes", underlayIPv6.tcp, native.tcp, underlay},
		{"64 MB by TCP, routes against a bare veth", native.bulk, bare.bulk, unlimited},
		{"64 MB by TCP, tunnel against routes", tunnel.bulk, native.bulk, bulk},
	} {
		b.compareRates("between nodes, "+family+": "+row.what, row.ours, row.control, row.budget)
	}
}

func (p *nodePair) round(ipv6 bool) error {
	tcp, err := p.path[ipv6].requestResponse()
	if err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	udp, err := p.path[ipv6].datagrams(requests)
	if err != nil {
		return fmt.Errorf("UDP: %w", err)
	}
	bulk, err := p.path[ipv6].stream()
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	p.tcp, p.udp, p.bulk = append(p.tcp, tcp), append(p.udp, median(udp)), append(p.bulk, bulk)
	return nil
}

// datagrams returns the duration of each of count one-byte UDP exchanges. Both ends run as in [path.requestResponse].
func (p path) datagrams(count int) (took []time.Duration, err error) {
	ready, served := make(chan unix.Sockaddr, 1), make(chan error, 1)
	go func() {
		served <- p.server.Do(func() error {
			defer close(ready)
			fd, err := p.datagramSocket()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			name, err := unix.Getsockname(fd)
			if err != nil {
				return err
			}
			ready <- name
			buffer := make([]byte, 1)
			for range count {
				_, from, err := unix.Recvfrom(fd, buffer, 0)
				for err == unix.EINTR {
					_, from, err = unix.Recvfrom(fd, buffer, 0)
				}
				if err != nil {
					return err
				}
				if err := unix.Sendto(fd, buffer, 0, from); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	name, ok := <-ready
	if !ok {
		return nil, <-served
	}
	err = p.client.Do(func() error {
		fd, err := unix.Socket(domain(p.addr), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := errors.Join(limit(fd), pin(), unix.Connect(fd, name)); err != nil {
			return err
		}
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
	})
	return took, errors.Join(err, <-served)
}

// datagramSocket opens the server's socket and binds the thread to its CPU.
func (p path) datagramSocket() (int, error) {
	fd, err := unix.Socket(domain(p.addr), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(limit(fd), pin(), unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.addr, 0)))); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// compareRates reports the rates of two sides and the median of their ratios with its confidence interval. The budget limits the median.
func (b *bench) compareRates(what string, ours, control []time.Duration, budget figures.Limit) {
	rate := func(d []time.Duration) string { return fmt.Sprintf("%.0f/s", float64(time.Second)/float64(median(d))) }
	low, high := interval(ours, control)
	b.sheet.Add(fmt.Sprintf("%s (%.3f to %.3f)", what, low, high), rate(ours), rate(control), figures.Of(faster(ours, control), 1), budget)
}
