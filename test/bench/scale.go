package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// large is a pair of nodes in a cluster of far nodes.
type large struct {
	*bench
	*kubePair
	hosts *farHosts
	agent *agentclient.Client // of the first node
	maps  farMaps             // likewise
	pair  *nodePair
	empty float64 // resident memory of that agent in MB, without pods
}

// largeCluster measures an agent in a cluster of 5,000 nodes and 150,000 pods. This process has many objects: it runs garbage collections between
// measurements and not during them.
func (b *bench) largeCluster(ctx context.Context) error {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	k, err := b.newKubePair()
	if err != nil {
		return err
	}
	defer k.Close()
	hosts, err := startFarHosts(k.one)
	if err != nil {
		return err
	}
	defer hosts.Close()
	l := &large{bench: b, kubePair: k, hosts: hosts, agent: agentclient.New(filepath.Join(k.one.StateDir(), "waggle.sock"))}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{{"nodes join", l.joinAll}, {"first sync", l.firstSync}, {"pods", l.fill}, {"at rest", l.atRest}, {"a node joins", l.joinOne},
		{"addresses of nodes change", l.moveNodes}, {"traffic", l.traffic}, {"used paths", l.usedPaths}} {
		runtime.GC()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return l.maps.Close()
}

// joinAll reports the agent's CPU time while all nodes join.
func (l *large) joinAll(ctx context.Context) error {
	const span = time.Minute
	l.server.Put(farIdentityObjects()...)
	if err := errors.Join(l.two.StartAgent(), waitReady(ctx, l.two)); err != nil {
		return err
	}
	maps, err := openFarMaps(l.two)
	if err != nil {
		return err
	}
	defer maps.Close()
	time.Sleep(3 * time.Second)
	before, err := cpuTime(l.two)
	if err != nil {
		return err
	}
	began := time.Now()
	for n := farNode(1); n <= farNodes && ctx.Err() == nil; n++ {
		l.server.Put(n.objects(0)...)
		time.Sleep(time.Until(began.Add(span * time.Duration(n) / farNodes)))
	}
	if err := maps.await(ctx, farNodes); err != nil {
		return err
	}
	after, err := cpuTime(l.two)
	if err != nil {
		return err
	}
	l.report("CPU of the agent while "+manyNodes+" join within a minute",
		fmt.Sprintf("%s (%.1f %% of a core)", show(after-before), 100*(after-before).Seconds()/time.Since(began).Seconds()), figures.Time(after-before), unlimited)
	each := (after - before) / farNodes
	l.report("CPU of the agent for each node that joins, "+manyNodes+" within a minute", show(each), figures.Time(each), nodeJoinsBudget)
	return l.two.StopAgent(ctx)
}

// firstSync starts the agent of the first node. All nodes are new to it.
func (l *large) firstSync(ctx context.Context) (err error) {
	if err := errors.Join(l.one.StartAgent(), waitReady(ctx, l.one)); err != nil {
		return err
	}
	if l.maps, err = openFarMaps(l.one); err != nil {
		return err
	}
	if err := l.maps.await(ctx, farNodes); err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	used, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	took, err := l.fromRows(ctx)
	if err != nil {
		return err
	}
	l.report("first sync of "+manyNodes+", from rows to maps and routes", show(took), figures.Time(took), syncBudget)
	l.report("CPU of the agent for its start and that sync", show(used), figures.Time(used), unlimited)
	var cpu time.Duration
	var routes int
	if err := l.one.Do(func() (err error) { cpu, routes, err = l.maps.writeAgain(); return err }); err != nil {
		return err
	}
	l.report("CPU of its writes, all entries and routes of "+manyNodes+" written again", show(cpu), figures.Time(cpu), syncKernelBudget)
	l.report("routes to "+manyNodes+" with a tunnel", fmt.Sprint(routes), figures.Value{Number: float64(routes), Unit: "routes"}, routesBudget)
	return nil
}

// fill adds the pods of all nodes.
func (l *large) fill(ctx context.Context) (err error) {
	if err := l.awaitPathTests(ctx); err != nil { // so that their cost is not attributed to pods
		return err
	}
	if l.empty, err = l.idleMemory(collected); err != nil {
		return err
	}
	before, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	for n := farNode(1); n <= farNodes && ctx.Err() == nil; n++ {
		for i := range farPodsOfNode {
			l.server.Put(n.pod(i))
		}
	}
	if err := l.maps.awaitPods(ctx, farNodes); err != nil {
		return err
	}
	after, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	each := (after - before) / (farNodes * farPodsOfNode)
	l.report("CPU of the agent for each of "+manyPods+" that appear", show(each), figures.Time(each), unlimited)
	return nil
}

// collected is a time in which every agent returns unused memory, and collects garbage for that, unless it is less than an eighth of the memory.
const collected = 130 * time.Second

// idleMemory returns the minimum resident memory of the first node's agent within a time, in MB.
func (l *large) idleMemory(within time.Duration) (float64, error) {
	least, err := residentMemory(l.one)
	for end := time.Now().Add(within); time.Now().Before(end) && err == nil; {
		time.Sleep(5 * time.Second)
		var now float64
		now, err = residentMemory(l.one)
		least = min(least, now)
	}
	return least, err
}

// joins is the number of nodes that joinOne adds.
const joins = 100

// joinOne reports the time from the creation of a node's objects until its pods are reachable, and until the identity of a pod is known.
func (l *large) joinOne(ctx context.Context) (err error) {
	if l.pair, err = l.startTwo(ctx); err != nil {
		return err
	}
	pinger, err := startDatagrams(l.pair.path[false].client)
	if err != nil {
		return err
	}
	defer pinger.stop()
	var reached, known []time.Duration
	for n := farNode(farNodes + 1); n <= farNodes+joins; n++ {
		pod := n.podAddr(0)
		pinger.to(pod)
		began := time.Now()
		l.server.Put(n.objects(0)...)
		l.server.Put(n.pod(0))
		var one time.Duration
		if err := await(ctx, time.Millisecond, func() error {
			if one == 0 && l.maps.pod(n, 0) {
				one = time.Since(began)
			}
			if one == 0 || l.hosts.reached(pod).IsZero() {
				return fmt.Errorf("the pod %s of node %s is not reached", pod, n.name())
			}
			return nil
		}); err != nil {
			return err
		}
		pinger.to(netip.Addr{})
		reached, known = append(reached, l.hosts.reached(pod).Sub(began)), append(known, one)
		time.Sleep(150 * time.Millisecond)
	}
	for _, row := range []struct {
		what string
		took []time.Duration
	}{{"a node joins, until its pods are reached", reached}, {"a node joins, until the identity of its pod is known", known}} {
		p99 := percentile(row.took, 99)
		l.report(fmt.Sprintf("%s, beside %s and %s, p99 of %d (p50)", row.what, manyNodes, manyPods, len(row.took)),
			fmt.Sprintf("%s (%s)", show(p99), show(median(row.took))), figures.Time(p99), joinBudget)
	}
	return nil
}

// startTwo starts the agent of the second node and a pod on each node.
func (l *large) startTwo(ctx context.Context) (*nodePair, error) {
	if err := errors.Join(l.two.StartAgent(), waitReady(ctx, l.two)); err != nil {
		return nil, err
	}
	return l.pods(ctx)
}

// moveNodes changes the underlay addresses of nodes, one after the other, and reports the cost.
func (l *large) moveNodes(ctx context.Context) error {
	var took []time.Duration
	began := time.Now()
	before, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	const moves = 20
	for i := range moves {
		n, turn := farNode(100), (i+1)%2
		moved := time.Now()
		l.server.Put(n.objects(turn)...)
		if err := await(ctx, time.Millisecond, func() error {
			if !l.maps.node(n, turn) {
				return fmt.Errorf("%s is not known by its new address", n.name())
			}
			return nil
		}); err != nil {
			return err
		}
		took = append(took, time.Since(moved))
		time.Sleep(time.Second)
	}
	after, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	written, err := l.writtenSince(ctx, began)
	if err != nil {
		return err
	}
	p99 := percentile(took, 99)
	l.report(fmt.Sprintf("the address of a node changes, until it is in the maps, p99 of %d (p50)", moves), fmt.Sprintf("%s (%s)", show(p99), show(median(took))),
		figures.Time(p99), joinBudget)
	l.report("CPU of the agent for each of those changes, and a second of rest", show((after-before)/moves), figures.Time((after-before)/moves), unlimited)
	l.report(fmt.Sprintf("rows that those changes have written to the maps, with %d pods on the node", farPodsOfNode), fmt.Sprint(written),
		figures.Value{Number: float64(written), Unit: "rows"}, unlimited)
	return nil
}

// traffic compares request-response through the tunnel with the same in a cluster of three nodes.
func (l *large) traffic(ctx context.Context) error {
	small, err := l.newKubePair()
	if err != nil {
		return err
	}
	defer small.Close()
	small.server.Put(farNode(1).objects(0)...)
	if err := errors.Join(small.one.StartAgent(), small.two.StartAgent(), waitReady(ctx, small.one), waitReady(ctx, small.two)); err != nil {
		return err
	}
	control, err := small.pods(ctx)
	if err != nil {
		return err
	}
	pairs := []*nodePair{l.pair, control}
	for round := range 2 * l.rounds { // each starts with the other pair
		for i := range pairs {
			if err := pairs[(i+round)%len(pairs)].round(false); err != nil {
				return err
			}
		}
	}
	l.compareRates("request-response between nodes by TCP, "+manyNodes+" against 3", l.pair.tcp, control.tcp, largeTrafficBudget)
	l.compareRates("request-response between nodes by UDP, "+manyNodes+" against 3", l.pair.udp, control.udp, largeTrafficBudget)
	return nil
}

// atRest reports the memory of an agent that has tested all paths once, and its CPU use once it has returned the memory that it used for them, while no pod
// sends.
func (l *large) atRest(ctx context.Context) error {
	if err := l.awaitPathTests(ctx); err != nil {
		return err
	}
	resident, err := l.idleMemory(collected)
	if err != nil {
		return err
	}
	const pods = farNodes * farPodsOfNode
	each := (resident - l.empty) * (1 << 20) / 1e3 / pods
	l.report("resident memory of the agent for each of "+manyPods, fmt.Sprintf("%.2f KB (%.0f MB, without pods %.0f MB)", each, resident, l.empty),
		figures.Value{Number: each, Unit: "KB"}, podMemoryBudget)
	began := time.Now()
	before, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	time.Sleep(collected)
	after, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	share := 100 * (after - before).Seconds() / time.Since(began).Seconds()
	l.report("agent at rest, CPU, "+manyNodes+" that are probed and "+manyPods, fmt.Sprintf("%.2f %%", share),
		figures.Value{Number: share, Unit: "% of a core"}, largeRestBudget)
	return nil
}

// usedPaths reports the CPU use of an agent one of whose pods has sent to the pods of the nodes that have joined: their paths are tested all the time.
func (l *large) usedPaths(ctx context.Context) error {
	const span = time.Minute
	if err := l.two.StopAgent(ctx); err != nil {
		return err
	}
	time.Sleep(5 * time.Second)
	began := time.Now()
	before, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	time.Sleep(span)
	after, err := cpuTime(l.one)
	if err != nil {
		return err
	}
	share := 100 * (after - before).Seconds() / time.Since(began).Seconds()
	l.report(fmt.Sprintf("agent, CPU, with flows to the pods of %d nodes", joins), fmt.Sprintf("%.2f %%", share), figures.Value{Number: share, Unit: "% of a core"},
		unlimited)
	return nil
}

// awaitPathTests waits until the agent of the first node has tested the paths to all but a few nodes.
func (l *large) awaitPathTests(ctx context.Context) error {
	for unknown := farNodes; unknown > farNodes/100; { // the path to the second node stays unknown while that node has no agent
		time.Sleep(10 * time.Second)
		rows, err := agentclient.Rows[*pathtests.Test](ctx, l.agent, "path-tests")
		if err != nil {
			return err
		}
		unknown = 0
		for _, row := range rows {
			if row.Kind == pathtests.Kinds[0] && row.State == pathtests.Unknown {
				unknown++
			}
		}
	}
	return nil
}

// cpuTime returns the CPU time of a node's agent since its start.
func cpuTime(node *nodekit.Node) (time.Duration, error) {
	const tick = 10 * time.Millisecond // of USER_HZ, fixed by the kernel's interface
	ticks, err := cpuTicks(node.AgentPID())
	return time.Duration(ticks) * tick, err
}
