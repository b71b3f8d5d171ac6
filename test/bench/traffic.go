package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
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
