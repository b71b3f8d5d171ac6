package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// fillers is the number of services on a node with many services, in addition to the measured one.
const fillers = 30_000

const (
	shopPort    = 80
	shopBackend = 8080
)

// shopAddrs are the ClusterIPs of the measured service, by IPv6.
var shopAddrs = map[bool]netip.Addr{false: netip.MustParseAddr("10.96.0.10"), true: netip.MustParseAddr("fd00:10:96::10")}

// shop is a client and a server that the client reaches directly and through a service, with the results of both paths.
type shop struct {
	paths           map[bool]path // direct paths, by IPv6
	through, direct side
}

func newShop(client, server nodekit.NetNS, addr func(ipv6 bool) netip.Addr) *shop {
	s := &shop{paths: map[bool]path{}}
	for _, ipv6 := range []bool{false, true} {
		s.paths[ipv6] = path{client: client, server: server, addr: addr(ipv6), port: shopBackend}
	}
	return s
}

// services compares new connections through a ClusterIP with the same service implemented by iptables rules, with one service and with many. It also compares
// new connections and request-response through the ClusterIP with direct access, with translation in sockets and in packets.
func (b *bench) services(ctx context.Context) error {
	var one, many, packets, rules, manyRules *shop
	var closers []func() error
	defer func() {
		for _, do := range closers {
			_ = do() // the kernel frees all of it with this process
		}
	}()
	for _, s := range []struct {
		shop    **shop
		fillers int
		args    []string // of the agent
	}{{&one, 0, nil}, {&many, fillers, nil}, {&packets, 0, []string{"--bpf-lb-sock=false"}}} {
		node, err := b.startNode(ctx, nodekit.Options{AgentArgs: s.args})
		if err != nil {
			return err
		}
		closers = append(closers, node.Close)
		if *s.shop, err = openShop(ctx, node, s.fillers); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		shop    **shop
		fillers int
	}{{&rules, 0}, {&manyRules, fillers}} {
		pair, err := nodekit.NewRoutedPair()
		if err != nil {
			return err
		}
		closers = append(closers, pair.Close)
		if err := writeRules(ctx, pair, s.fillers); err != nil {
			return err
		}
		*s.shop = newShop(pair.Client(), pair.Server(), pair.Addr)
	}
	all := []*shop{one, many, packets, rules, manyRules}
	for _, ipv6 := range []bool{false, true} {
		for _, s := range all {
			s.through, s.direct = side{}, side{}
		}
		for round := range 2 * b.rounds { // see traffic
			for i := range all {
				if err := all[(i+round)%len(all)].round(ipv6, round%2 == 0); err != nil {
					return err
				}
			}
		}
		b.showServices(map[bool]string{false: "IPv4", true: "IPv6"}[ipv6], one, many, packets, rules, manyRules)
	}
	return nil
}

// round measures both paths in the given order.
func (s *shop) round(ipv6, directFirst bool) error {
	direct := s.paths[ipv6]
	through := direct
	through.service = netip.AddrPortFrom(shopAddrs[ipv6], shopPort)
	ways := []struct {
		path path
		side *side
	}{{through, &s.through}, {direct, &s.direct}}
	if directFirst {
		ways[0], ways[1] = ways[1], ways[0]
	}
	for _, way := range ways {
		connect, err := way.path.connects()
		if err != nil {
			return fmt.Errorf("connections to %v: %w", way.path.service, err)
		}
		way.side.connected = append(way.side.connected, connect)
	}
	for _, way := range ways {
		rr, err := way.path.requestResponse()
		if err != nil {
			return fmt.Errorf("request-response with %v: %w", way.path.service, err)
		}
		way.side.took = append(way.side.took, rr)
	}
	return nil
}

func (b *bench) showServices(family string, one, many, packets, rules, manyRules *shop) {
	rate := func(d []time.Duration) string { return fmt.Sprintf("%.0f/s", float64(time.Second)/float64(median(d))) }
	rates := func(what string, ours, control []time.Duration, budget figures.Limit) {
		b.sheet.Add(what, rate(ours), rate(control), figures.Of(faster(ours, control), 1), budget)
	}
	times := func(what string, ours, control []time.Duration, budget figures.Limit) {
		b.sheet.Add(what, show(median(ours)), show(median(control)), figures.Of(faster(control, ours), 1), budget)
	}
	crowd := fmt.Sprintf("%d services", fillers)
	rates("connections through a ClusterIP "+family+", 1 service, against iptables", one.through.connected, rules.through.connected, iptablesBudget)
	rates("and at the packet", packets.through.connected, rules.through.connected, unlimited)
	rates("connections through a ClusterIP "+family+", "+crowd+", against iptables", many.through.connected, manyRules.through.connected, unlimited)
	times("connect through a ClusterIP "+family+", "+crowd+" against 1, p50", many.through.connected, one.through.connected, crowdConnectBudget)
	times("and of iptables", manyRules.through.connected, rules.through.connected, unlimited)
	rates("request-response "+family+", one CPU, through a ClusterIP against to the pod", one.through.took, one.direct.took, throughBudget)
	rates("and at the packet", packets.through.took, packets.direct.took, unlimited)
	rates("and of iptables", rules.through.took, rules.direct.took, unlimited)
	times("connect to a pod "+family+", with programs at the socket against without, p50", one.direct.connected, packets.direct.connected, unlimited)
	times("connect through a ClusterIP "+family+" against to the pod, p50", one.through.connected, one.direct.connected, unlimited)
	times("and at the packet", packets.through.connected, packets.direct.connected, unlimited)
}

// openShop attaches the two pods, writes their service and the fillers, and waits until the datapath has all of them.
func openShop(ctx context.Context, node *nodekit.Node, fillers int) (*shop, error) {
	buyer, err := node.AddPod(ctx, "buyer")
	if err != nil {
		return nil, err
	}
	seller, err := node.AddPod(ctx, "seller") // both are removed with the node
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	manifest(&text, "shop", shopAddrs[false], seller.Addr(false))
	manifest(&text, "shop6", shopAddrs[true], seller.Addr(true))
	if err := node.WriteManifest("shop.yaml", text.String()); err != nil {
		return nil, err
	}
	const each = 2000 // services per file, whose size is limited
	for at := 0; at < fillers; at += each {
		text.Reset()
		for i := at; i < min(at+each, fillers); i++ {
			manifest(&text, fmt.Sprintf("filler-%d", i), fillerAddr(97, i), fillerAddr(98, i))
		}
		if err := node.WriteManifest(fmt.Sprintf("fillers-%05d.yaml", at), text.String()); err != nil {
			return nil, err
		}
	}
	return newShop(buyer, seller, seller.Addr), serving(ctx, node, fillers+2)
}

// fillerAddr returns an address of a filler service or of its backend.
func fillerAddr(block byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, block, byte(i / 250), byte(1 + i%250)})
}

// manifest writes a service of one family with its EndpointSlice.
func manifest(text *strings.Builder, name string, clusterIP, backend netip.Addr) {
	family := "IPv4"
	if clusterIP.Is6() {
		family = "IPv6"
	}
	fmt.Fprintf(text, "---\n{apiVersion: v1, kind: Service, metadata: {namespace: default, name: %s}, spec: {clusterIP: %q, clusterIPs: [%q], "+
		"ports: [{port: %d, targetPort: %d, protocol: TCP}]}}\n", name, clusterIP, clusterIP, shopPort, shopBackend)
	fmt.Fprintf(text, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: %s-1, "+
		"labels: {kubernetes.io/service-name: %s}}, addressType: %s, ports: [{port: %d, protocol: TCP}], endpoints: [{addresses: [%q], "+
		"nodeName: node-1}]}\n", name, name, family, shopBackend, backend)
}

// serving waits until the datapath has the wanted number of frontends.
func serving(ctx context.Context, node *nodekit.Node, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	agent := agentclient.New(filepath.Join(node.StateDir(), "waggle.sock"))
	for {
		rows, err := agentclient.Rows[*frontends.Frontend](ctx, agent, "frontends")
		if err != nil {
			return err
		}
		done := 0
		for _, row := range rows {
			if row.Status.Kind == reconciler.StatusKindDone {
				done++
			}
		}
		if done == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d frontends are in force: %w", done, want, ctx.Err())
		case <-time.After(500 * time.Millisecond):
		}
	}
}
