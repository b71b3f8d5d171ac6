package nodehealthprober

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// With a sample, few nodes without flows are probed per interval. All nodes with flows but without recent replies are probed.
func TestSample_NodesWithoutFlows_AreProbedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used, sample = 1000, 10, 16
		net := newFake()
		r := newRig(t, net, number)
		r.options.sample = sample
		ctx, cancel := context.WithCancel(t.Context())
		health, _ := cell.NewSimpleHealth()
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.run(ctx, health); err != nil {
				t.Error(err)
			}
		})
		defer running.Wait()
		defer cancel()
		interval := r.options.interval(number)
		time.Sleep(interval)
		if got := r.states(); got[nodehealth.Reachable] != number {
			t.Errorf("after the first interval %v, want all reachable", got)
		}
		// Pods have old connections with some nodes, whose replies are not known.
		for i := 1; i <= used; i++ {
			r.insertTraffic(t, &nodetraffic.Traffic{Node: nameOf(i), IPv4: nodetraffic.Family{Flows: 1}})
		}
		before, all := make([]int, number), net.total().echo
		for i := range before {
			before[i] = net.echoes(i)
		}
		const intervals = 40
		time.Sleep(intervals * interval)
		for i := 1; i <= used; i++ {
			if got := net.echoes(i) - before[i]; got < intervals-1 {
				t.Errorf("node %d with flows was probed %d times in %d intervals", i, got, intervals)
			}
		}
		want := intervals * (used + 1 + sample + math.Log1p(number))
		if got := float64(net.total().echo - all); got < want*0.8 || got > want*1.3 {
			t.Errorf("%.0f probes in %d intervals, want about %.0f", got, intervals, want)
		}
		// Each node keeps its last verdict, with the time of its probe.
		old := 0
		for row := range r.table.All(r.db.ReadTxn()) {
			if row.State() != nodehealth.Reachable {
				t.Fatalf("the state of %s is %s, want reachable: its last probe began %v ago", row.Node, row.State(), time.Since(row.LastProbe()))
			}
			if time.Since(row.LastProbe()) > 10*interval {
				old++
			}
		}
		if old == 0 {
			t.Error("all nodes were probed in the last ten intervals")
		}
		// A client gets the current state of all nodes.
		all = net.total().echo
		if _, err := r.requests.wait(ctx); err != nil || net.total().echo-all < number {
			t.Errorf("a client had %d nodes probed: %v", net.total().echo-all, err)
		}
	})
}

// A node without flows is not probed twice in an interval. This node, nodes with flows and nodes whose agents differ are probed in each interval.
func TestNext_OfSample_IsRandomAfterInterval(t *testing.T) {
	t.Parallel()
	const number, tries = 1000, 2000
	p := newRig(t, newFake(), 1).prober
	p.options.sample = 16
	for i := range number {
		p.targets[nameOf(i)] = &target{name: nameOf(i)}
	}
	interval, mean := p.options.interval(number), p.options.sampled(number)
	var sum time.Duration
	for range tries {
		got := p.next(p.targets[nameOf(1)])
		if sum += got; got < interval*9/10 || got > interval+maxSampled*mean {
			t.Fatalf("a node without flows is probed after %v, want at least %v and at most %v", got, interval*9/10, interval+maxSampled*mean)
		}
	}
	if got := sum / tries; got < mean*8/10 || got > mean*12/10 {
		t.Errorf("a node without flows is probed every %v, want %v", got, mean)
	}
	p.targets[nameOf(2)].used = true
	p.targets[nameOf(3)].view.since = time.Unix(1000, 0)
	for i, what := range map[int]string{0: "this node", 2: "a node with flows", 3: "a node whose agent differs"} {
		for range 10 {
			if got := p.next(p.targets[nameOf(i)]); got > interval {
				t.Errorf("%s is probed after %v, want at most %v", what, got, interval)
			}
		}
	}
}

// By default all nodes of a cluster with up to 104 nodes are probed in each interval.
func TestOptions_DefaultSample_IsAllOfSmallCluster(t *testing.T) {
	t.Parallel()
	o, err := newOptions(DefaultConfig, agentconfig.Agent{})
	if err != nil {
		t.Fatal(err)
	}
	for nodes, want := range map[int]string{
		2:    "2 nodes, each probed every 1m6s",
		101:  "101 nodes, each probed every 4m37s",
		104:  "104 nodes, each probed every 4m39s",
		300:  "300 nodes, each with flows probed every 5m42s, and each of the others every 16m0s on average",
		5000: "5000 nodes, each with flows probed every 10m0s, and each of the others every 7h41m0s on average",
	} {
		if got := o.rhythm(nodes); got != want {
			t.Errorf("with %d nodes the health says %q, want %q", nodes, got, want)
		}
		if all := o.sampled(nodes) == o.interval(nodes); all != (nodes <= 104) {
			t.Errorf("all of %d nodes are probed in each interval: %v", nodes, all)
		}
	}
	if o.sampled(105) == o.interval(105) {
		t.Error("all of 105 nodes are probed in each interval")
	}
}

func TestOptions_Sampled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sample, nodes, times int // in intervals
	}{{0, 5000, 1}, {16, 20, 1}, {92, 5000, 50}, {10000, 5000, 1}} {
		o := options{base: time.Minute, rate: 10, sample: test.sample}
		if got := o.sampled(test.nodes); got.Round(o.interval(test.nodes)) != time.Duration(test.times)*o.interval(test.nodes) {
			t.Errorf("with a sample of %d, each of %d nodes is probed every %v, want %d times %v", test.sample, test.nodes, got, test.times, o.interval(test.nodes))
		}
		if lean := o.lean(test.nodes); lean != (test.nodes == 5000 && test.times == 1) {
			t.Errorf("with a sample of %d of %d nodes lean is %v", test.sample, test.nodes, lean)
		}
	}
}
