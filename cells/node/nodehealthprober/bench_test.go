package nodehealthprober

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
)

// cpu returns the CPU time that this process has used.
func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkFullRate_5000Nodes measures the CPU time of an agent in a cluster of 5,000 nodes for ten probes per second, the maximum without a waiting client,
// and for replies to as many probes of other nodes. Each node has an IPv4 address and a health address of the loopback device, so one process is both ends of
// each probe. One operation is one second.
func BenchmarkFullRate_5000Nodes(b *testing.B) {
	const number = 5000
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		b.Fatal(err)
	}
	db := statedb.New()
	table, err1 := nodehealth.NewTable(db)
	all, err2 := nodes.NewTable(db)
	o, err3 := newOptions(DefaultConfig, agentconfig.Agent{})
	views, err4 := nodeviews.NewTable(db)
	traffic, err5 := nodetraffic.NewTable(db)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		b.Fatal(err)
	}
	o.sample = 0 // all nodes
	o.port = netip.MustParseAddrPort(l.Addr().String()).Port()
	agent := agentconfig.Agent{NodeName: nameOf(0), EnableIPv4: true, HealthChecking: true, EndpointHealthChecking: true}
	txn := db.WriteTxn(table, all)
	initialized := table.RegisterInitializer(txn, "node-health")
	heap := heapSize()
	for i := range number {
		node := &nodes.Node{Name: nameOf(i), Addresses: []nodes.Address{
			{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})},
			{Type: nodes.HealthIP, Addr: netip.AddrFrom4([4]byte{127, 2, byte(i >> 8), byte(i)})}}}
		_, _, _ = all.Insert(txn, node)
		for _, row := range pathsOf(node, node, agent) { // all paths are reachable from the start
			row.ICMP.State, row.HTTP.State = nodehealth.Reachable, nodehealth.Reachable
			_, _, _ = table.Insert(txn, row)
		}
	}
	txn.Commit()
	p := newProber(params{DB: db, Agent: agent, Options: o, Kernel: newKernel(), Table: table, Views: views, Nodes: all, Traffic: traffic, View: newView(agent)})
	p.initialized = initialized
	ctx, cancel := context.WithCancel(b.Context())
	health, _ := cell.NewSimpleHealth()
	var running sync.WaitGroup
	running.Go(func() { _ = responder{Kernel: listening{l: l}, View: p.view}.run(ctx, health) })
	running.Go(func() { _ = p.run(ctx, health) })
	defer running.Wait()
	defer cancel()
	time.Sleep(2 * calmStep)
	began, used := time.Now(), cpu(b)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(100*float64(cpu(b)-used)/float64(time.Since(began)), "%-of-a-core")
	b.ReportMetric(float64(heapSize()-heap)/number, "B/node")
	asked, answered := 0, 0
	for row := range table.All(db.ReadTxn()) {
		if !row.ICMP.Asked.IsZero() {
			asked++
		}
		if row.State() == nodehealth.Reachable {
			answered++
		}
	}
	if asked == 0 || answered < asked {
		b.Errorf("%d addresses were asked and %d answered", asked, answered)
	}
}

// heapSize returns the heap in use, in bytes.
func heapSize() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRound_5000Nodes measures one round of the loop with the results of ten visits.
func BenchmarkRound_5000Nodes(b *testing.B) {
	net := newFake()
	r := newRig(b, net, 5000)
	if err := r.subscribe(); err != nil {
		b.Fatal(err)
	}
	defer r.rows.Close()
	var first update
	r.follow(r.db.ReadTxn(), statedb.NewWatchSet(), true, &first)
	if err := r.commit(first, true); err != nil {
		b.Fatal(err)
	}
	all := make([]*target, 0, 5000)
	for _, t := range r.targets {
		all = append(all, t)
		t.due = time.Now().Add(time.Hour)
	}
	next := 0
	for b.Loop() {
		for range 10 {
			t := all[next%len(all)]
			next++
			v := plan(t, false, true)
			v.results = make([]results, len(v.paths))
			for i := range v.results {
				v.results[i].icmp = outcome{began: time.Now(), ended: time.Now(), latency: time.Millisecond}
			}
			r.busy += len(v.paths)
			r.ended = append(r.ended, v)
		}
		var u update
		r.absorb(&u)
		if err := r.commit(u, true); err != nil {
			b.Fatal(err)
		}
		r.completeRequests()
		r.earliest = time.Time{} // scan the schedule in each round
		r.start(b.Context())
	}
}

// BenchmarkNodeMoves measures a changed address of a node beside 5,000 others.
func BenchmarkNodeMoves(b *testing.B) {
	r := newRig(b, newFake(), 5000)
	if err := r.subscribe(); err != nil {
		b.Fatal(err)
	}
	defer r.rows.Close()
	round := func() {
		var u update
		r.follow(r.db.ReadTxn(), statedb.NewWatchSet(), true, &u)
		if err := r.commit(u, true); err != nil {
			b.Fatal(err)
		}
	}
	round()
	b.ReportAllocs()
	for turn := 0; b.Loop(); turn++ {
		txn := r.db.WriteTxn(r.nodes)
		_, _, _ = r.nodes.Insert(txn, &nodes.Node{Name: nameOf(100), Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{172, 17, byte(turn), 1})}}})
		txn.Commit()
		round()
	}
}
