package pathtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// step is the minimum interval between two rounds of the loop. Tests that start together need less CPU time than single ones.
	step = 250 * time.Millisecond
	// maxRate limits the nodes that are tested per second.
	maxRate = 20
	// maxBusy limits the nodes that are tested concurrently, and thus the sockets.
	maxBusy = 128

	// baseInterval is the maximum time between two tests of a path in a small cluster. It grows with the logarithm of the number of nodes.
	baseInterval = 10 * time.Minute
	// stepInterval is the minimum of that time for each node. From about 1,000 nodes on it limits the tests of paths without flows and without faults.
	stepInterval = 4 * time.Second
	// failedInterval is the interval for a failed path, so that its recovery is noticed. It grows when more than flowsRate such nodes would be tested in a second.
	failedInterval = 20 * time.Second
	// suspectInterval is the time between two tests of a path that had passed and whose last test failed, until there is a verdict.
	suspectInterval = 2 * time.Second
	// healTries is the number of visits at suspectInterval after corrupt checksums were found, until the path is healed.
	healTries = 5
	// freshInterval is the interval instead of suspectInterval for a path that has never passed: its node may be starting.
	freshInterval = 5 * time.Second
	// joinSpread is the time within which all agents test a new node.
	joinSpread = 8 * time.Second
)

type params struct {
	cell.In

	DB       *statedb.DB
	Agent    agentconfig.Agent
	Kernel   kernel
	Table    statedb.RWTable[*pathtests.Test]
	Nodes    statedb.Table[*nodes.Node]
	Overlays statedb.Table[*overlays.Overlay]
	MTUs     statedb.Table[mtus.MTU]
	Devices  statedb.Table[*devices.Device]
	Health   statedb.Table[*nodehealth.Path]
	Flows    statedb.Table[*flows.Flow]

	// For --routing-mode=hybrid only.
	Paths     statedb.RWTable[*nodepaths.Path]
	Routes    statedb.Table[*devices.Route]
	Neighbors statedb.Table[devices.Neighbor]
}

// tester schedules the tests and writes the table. The loop owns all fields except ended, which other goroutines write.
type tester struct {
	in          params
	db          *statedb.DB
	table       statedb.RWTable[*pathtests.Test]
	initialized func(statedb.WriteTxn)

	limiter *rate.Limiter
	targets map[string]*target // by node name
	waiting schedule           // targets that wait for a visit
	rows    *clusternodes.Rows
	known   bool // the table nodes was complete in the last round
	self    local
	users   users
	links   links
	paths   verdicts
	busy    int            // number of targets that are being tested
	running sync.WaitGroup // running visits

	mu    sync.Mutex // guards ended
	ended []*visit
	wake  chan struct{} // receives a value when a visit ends
}

// local has the properties of this node that affect all paths. When they change, all paths are tested again.
type local struct {
	ready    bool     // the tunnel exists, or without a tunnel this node has addresses in its pod ranges
	tunnel   string   // text of the tunnel's properties and of the devices that lead out of the node
	routeMTU int      // largest packet that pods send to other nodes, in bytes
	way      int      // index of the device that leads into the tunnel; 0 without one
	pods     families // addresses of this node in its pod ranges; invalid with a tunnel
	direct   bool     // with --routing-mode=hybrid: this node accepts packets of pods outside its tunnel
}

func newTester(p params) *tester {
	return &tester{in: p, db: p.DB, table: p.Table, limiter: rate.NewLimiter(maxRate, maxRate*int(step)/int(time.Second)),
		targets: map[string]*target{}, wake: make(chan struct{}, 1)}
}

// run tests paths until the context is canceled, which also ends all visits.
func (t *tester) run(ctx context.Context, health cell.Health) error {
	ctx, cancel := context.WithCancel(ctx)
	t.in.Kernel.Open()
	defer t.in.Kernel.Close()
	defer t.running.Wait()
	defer cancel()
	t.restore()
	feed, err := t.subscribe()
	if err != nil {
		return err
	}
	defer feed.Close()
	defer t.rows.Close()
	health.OK("waiting for the nodes of the cluster")
	var reported time.Time
	for news, known := false, false; ; {
		txn := watchdog.Snapshot(ctx, t.db, t.in.Nodes, t.in.Health)
		changed := statedb.NewWatchSet()
		complete := changefeed.Watch(txn, changed, t.in.Nodes)
		var u update
		t.absorb(&u)
		t.observe(txn, changed)
		t.follow(txn, changed, complete, &u)
		t.alert(feed.UpTo(txn, changed))
		untilScan := t.scan(txn)
		pause := min(t.start(ctx), untilScan)
		if err := t.commit(u, complete); err != nil {
			return err
		}
		news = news || u.news || complete != known
		known = complete
		switch {
		case !news:
		case time.Since(reported) < reportInterval:
			pause = min(pause, reportInterval)
		default:
			t.report(health)
			news, reported = false, time.Now()
		}
		watchdog.IdleFor(ctx, pause)
		if t.wait(ctx, changed, pause) != nil {
			return nil //nolint:nilerr // the agent stops
		}
	}
}

// restore creates targets from the table after the loop was started again. Results of visits of the previous loop are lost.
func (t *tester) restore() {
	clear(t.targets)
	t.mu.Lock()
	t.ended = nil
	t.mu.Unlock()
	t.busy, t.known, t.self, t.users, t.links, t.paths, t.waiting = 0, false, local{}, users{}, links{}, newVerdicts(), schedule{}
	for row := range t.table.All(t.db.ReadTxn()) {
		to := t.targets[row.Node]
		if to == nil {
			to = &target{name: row.Node, peer: peer{uid: row.UID}, due: time.Now()}
			t.targets[row.Node] = to
		}
		to.rows = append(to.rows, row)
	}
	for name, to := range t.targets {
		t.paths.set(name, to.rows)
		t.waiting.put(to)
	}
}

// subscribe follows nodes and their health. The first round adds all existing nodes.
func (t *tester) subscribe() (health *changefeed.Feed[*nodehealth.Path], err error) {
	txn := t.db.WriteTxn(t.in.Nodes, t.in.Health)
	defer txn.Commit()
	if t.rows, err = clusternodes.FollowRows(txn, t.in.Nodes); err != nil {
		return nil, err
	}
	if health, err = changefeed.Follow(txn, t.in.Health); err != nil {
		t.rows.Close()
	}
	return health, err
}

// update has the changes of one round to the table.
type update struct {
	put  []*target // targets with changed rows
	gone []*pathtests.Test
	news bool // a verdict has changed, so the health of the module may change
}

// observe reads the properties of this node that affect all paths. A change only brings tests forward.
func (t *tester) observe(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	var now local
	rows, overlayChanged := t.in.Overlays.AllWatch(txn)
	for o := range rows {
		now.ready = o.Up && (o.Status.Kind == reconciler.StatusKindDone || t.self.ready) // healing rewrites the row of a tunnel that exists
		now.way = o.Way
		now.tunnel = fmt.Sprint(o.Port, o.MTU, o.Source, o.Way, o.IPv4, o.IPv6)
	}
	if self, _, found := t.in.Nodes.Get(txn, nodes.ByName(t.in.Agent.NodeName)); found {
		now.direct = t.in.Agent.Hybrid && self.Receives.AcceptsDirect()
		if !t.in.Agent.Tunnel() {
			now.pods = inside(self, t.in.Agent)
			now.ready = now.pods != families{}
		}
	}
	mtu, _, mtuChanged, _ := t.in.MTUs.GetWatch(txn, mtus.ByPrefix(mtus.Default))
	now.routeMTU = mtu.RouteMTU
	links, linksChanged := t.in.Devices.ListWatch(txn, devices.BySelected(true))
	for d := range links {
		now.tunnel += fmt.Sprint(" ", d.Index, d.Name, d.MTU, d.MAC, d.Up)
	}
	changed.Add(overlayChanged, mtuChanged, linksChanged)
	if now == t.self {
		return
	}
	overdue := !t.self.ready || t.self.routeMTU == 0 // no path could be tested
	t.self = now
	for _, to := range t.targets {
		if due := t.soon(t.spread()); overdue || due.Before(to.due) { // paths that flows use are tested sooner than the spread
			to.due = due
			t.waiting.put(to)
		}
	}
}

// spread returns the minimum time in which all paths can be tested.
func (t *tester) spread() time.Duration {
	return time.Duration(len(t.targets)) * time.Second / maxRate
}

// soon returns a random time within a spread from now.
func (t *tester) soon(spread time.Duration) time.Time {
	return time.Now().Add(rand.N(max(spread, 1)))
}

// follow applies changes of nodes. Missing nodes are dropped only when the table is complete. Removed nodes count as missing.
func (t *tester) follow(txn statedb.ReadTxn, changed *statedb.WatchSet, complete bool, u *update) {
	joined := t.known // nodes that arrive after the table was complete have joined; earlier ones existed before this agent
	names := map[string]struct{}{}
	t.rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		t.users.nodeChanged(before, after)
		for _, n := range []*nodes.Node{before, after} {
			if n != nil {
				names[n.Name] = struct{}{}
			}
		}
	})
	if complete && !t.known {
		for name := range t.targets {
			names[name] = struct{}{}
		}
	}
	t.known = complete
	var replaced []*target
	for name := range names {
		node, to := t.rows.All()[name], t.targets[name]
		switch {
		case node != nil && node.Source != nodes.Local && node.Source != nodes.Removed && name != t.in.Agent.NodeName:
			if at := peerOf(node, t.in.Agent); to == nil || to.peer != at {
				replaced = append(replaced, t.replace(name, at, joined, u))
			}
		case to != nil && complete:
			u.gone, u.news = append(u.gone, to.rows...), true
			delete(t.targets, name)
			t.waiting.drop(to)
		}
	}
	// The first round is scheduled last, because its spread depends on the number of nodes.
	for _, to := range replaced {
		if to.due.IsZero() {
			to.due = t.soon(t.spread())
		}
		t.waiting.put(to)
	}
}

// replace creates a target for a node that is new or whose addresses changed. Rows of unchanged addresses of the same node keep their verdicts.
func (t *tester) replace(name string, at peer, joined bool, u *update) *target {
	old := t.targets[name]
	to := &target{name: name, peer: at, rows: newRows(name, at, t.in.Agent)}
	if old != nil {
		t.waiting.drop(old)
		to.flows = old.flows
		for i, row := range to.rows {
			if row.Kind == pathtests.Direct && old.peer.hops != at.hops {
				continue // the new direct path has not been tested
			}
			if known := slices.IndexFunc(old.rows, row.Is); known >= 0 {
				to.rows[i] = old.rows[known]
			}
		}
	}
	if joined {
		to.urgent, to.due = true, t.soon(min(joinSpread, t.spread()+time.Second))
	}
	t.targets[name] = to
	u.put, u.news = append(u.put, to), true
	return to
}

// alert makes paths to nodes due that do not respond to probes.
func (t *tester) alert(probes []statedb.Change[*nodehealth.Path]) {
	for _, c := range probes {
		if to := t.targets[c.Object.Node]; to != nil && !c.Deleted && c.Object.State() == nodehealth.Unreachable && !to.failed() {
			to.urgent, to.due = true, time.Now()
			t.waiting.put(to)
		}
	}
}

// absorb applies the results of finished visits to the rows. It drops results of targets that were replaced or removed.
func (t *tester) absorb(u *update) {
	t.mu.Lock()
	ended := t.ended
	t.ended = nil
	t.mu.Unlock()
	for _, v := range ended {
		t.busy--
		to := v.target
		to.busy = false
		if t.targets[to.name] != to {
			continue
		}
		trouble := v.results.local()
		u.news = u.news || (trouble == nil) != (to.trouble == nil)
		if to.trouble = trouble; trouble != nil {
			t.paths.troubled[to] = struct{}{}
		}
		if v.results.echo.err == nil {
			to.suspected = time.Time{}
		} else if to.suspected.IsZero() {
			to.suspected = v.began
		}
		var heard time.Time
		if to.peer.router.IsValid() {
			heard = t.in.Kernel.Heard(to.peer.router)
		}
		found := v.findings(t.in.Agent, heard)
		if row := to.row(pathtests.Direct); row != nil && v.past != nil {
			found[pathtests.Direct] = v.directly(row)
		}
		for i, row := range to.rows {
			if f, tested := found[row.Kind]; tested {
				next := after
				if row.Kind == pathtests.Direct {
					next = afterDirect
				}
				to.rows[i] = next(row, f, v.began, v.results.rtt(row.Kind))
				u.news = u.news || to.rows[i].State != row.State || to.rows[i].Detail != row.Detail
			}
		}
		if to.unhealed++; !to.corrupted() {
			to.unhealed = 0
		}
		to.due, to.urgent = time.Now().Add(t.next(to)), to.open()
		t.waiting.put(to)
		u.put = append(u.put, to)
	}
}

// start starts visits of due targets, in the order of [schedule.first]. It returns the time until the next visit, at least one step.
func (t *tester) start(ctx context.Context) (pause time.Duration) {
	now := time.Now()
	if !t.self.ready || t.self.routeMTU == 0 {
		return time.Hour // a change of this node's properties ends the pause
	}
	for to := t.waiting.first(now); to != nil; to = t.waiting.first(now) {
		if t.busy >= maxBusy || !t.limiter.AllowN(now, 1) {
			return step
		}
		t.visit(ctx, to)
	}
	return max(step, t.waiting.next(now.Add(time.Hour)).Sub(now))
}

func (t *tester) visit(ctx context.Context, to *target) {
	v := &visit{target: to, began: time.Now(), peer: to.peer, size: t.self.routeMTU, port: t.in.Agent.HealthPort}
	if row := to.row(pathtests.Size); row != nil {
		v.search = row.Strikes >= strikes-1
	}
	if row := to.row(pathtests.Checksum); row != nil {
		v.heals = row.Fault == pathtests.Corrupted
	}
	switch {
	case t.in.Agent.Hybrid:
		v.past = t.pastTunnel(to)
		v.requests = []icmpecho.Request{{To: to.peer.inner}}
		if !to.peer.routed {
			v.requests[0].Device = t.self.way // routes may bypass the tunnel
		}
		v.tcp = !v.past.used // TCP follows the routes
	case t.in.Agent.Tunnel():
		v.requests, v.tcp = []icmpecho.Request{{To: to.peer.inner}}, true
	default:
		v.requests = t.self.pods.requests(to.peer.pods)
	}
	to.busy = true
	t.waiting.take(to)
	t.busy++
	t.running.Go(func() {
		v.do(ctx, t.in.Kernel)
		t.mu.Lock()
		t.ended = append(t.ended, v)
		t.mu.Unlock()
		select {
		case t.wake <- struct{}{}:
		default:
		}
	})
}

// wait waits for a step, and then until the pause is over, a table has changed or a visit has ended. It returns only errors of ctx.
func (t *tester) wait(ctx context.Context, changed *statedb.WatchSet, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(step):
	}
	if pause <= step {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, pause-step)
	defer cancel()
	changed.Add(t.wake)
	_, _ = changed.Wait(limited, 0)
	return ctx.Err()
}
