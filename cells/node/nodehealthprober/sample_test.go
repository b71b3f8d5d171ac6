package nodehealthprober

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"

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
		// A client gets the current state of all nodes.
		all = net.total().echo
		if _, err := r.requests.wait(ctx); err != nil || net.total().echo-all < number {
			t.Errorf("a client had %d nodes probed: %v", net.total().echo-all, err)
		}
	})
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
