package nodehealthprober

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// calmStep and urgentStep are the minimum intervals between two rounds of the loop, without and with a waiting client. Probes that start together need less
	// CPU time than single ones, and their rows are written in one transaction.
	calmStep   = time.Second
	urgentStep = 100 * time.Millisecond
	// suspectInterval is the time between two probes of a node whose last probe failed, until there is a verdict.
	suspectInterval = 10 * time.Second
	// maxBusy limits the addresses that are probed concurrently, and thus the sockets.
	maxBusy = 256
	// maxSampled limits the random part of the time between two probes of a sampled node, in multiples of its mean.
	maxSampled = 5
	// urgentRate limits the nodes that are probed per second while a client waits.
	urgentRate = 250
)

type params struct {
	cell.In

	DB      *statedb.DB
	Agent   agentconfig.Agent
	Options options
	Kernel  kernel
	Table   statedb.RWTable[*nodehealth.Path]
	Views   statedb.RWTable[*nodeviews.View]
	Nodes   statedb.Table[*nodes.Node]
	Traffic statedb.Table[*nodetraffic.Traffic]
	View    *view
}

// prober schedules the probes and writes the tables. The loop owns all fields except requests and ended, which other goroutines write.
type prober struct {
	db          *statedb.DB
	agent       agentconfig.Agent
	options     options
	kernel      kernel
	table       statedb.RWTable[*nodehealth.Path]
	views       statedb.RWTable[*nodeviews.View]
	nodes       statedb.Table[*nodes.Node]
	traffic     statedb.Table[*nodetraffic.Traffic]
	view        *view
	initialized func(statedb.WriteTxn)

	calm, urgent    *rate.Limiter
	targets         map[string]*target // by node name
	rows            *clusternodes.Rows // nil between two runs
	self            *nodes.Node        // the row of this node, nil without one
	complete        bool               // the table nodes was complete in the last round
	trafficRevision statedb.Revision   // revision of the table node-traffic in the last round
	earliest        time.Time          // no target without a running visit is due before this time
	busy            int                // number of addresses that are being probed
	running         sync.WaitGroup     // running visits
	hindrance       error              // the error that prevented probes in the last visit; nil without one
	differing       map[string]*target // targets with a row in node-views
	followed        int                // number of targets that are probed again soon because their agents differ

	requests *requests
	mu       sync.Mutex // guards ended
	ended    []*visit
	wake     chan struct{} // receives a value when a visit ends
}

// target is a node with its rows and its schedule.
type target struct {
	name  string
	paths []*nodehealth.Path // rows of the table
	due   time.Time          // time of the next visit
	began time.Time          // start of the last visit
	done  time.Time          // start of the last finished visit
	busy  bool               // a visit is running
	lean  bool               // the next visit omits HTTP if the cluster is lean
	view  comparison         // comparison of the nodes that its agent and this agent know

	since time.Time // time since which this agent knows the node
	used  bool      // pods of the node have flows with pods of this node
}

// open reports whether the last probe of an address failed without a verdict yet.
func (t *target) open() bool {
	return slices.ContainsFunc(t.paths, func(row *nodehealth.Path) bool { return suspected(row.ICMP) || suspected(row.HTTP) })
}

func newProber(p params) *prober {
	return &prober{
		db: p.DB, agent: p.Agent, options: p.Options, kernel: p.Kernel, table: p.Table, views: p.Views, nodes: p.Nodes, traffic: p.Traffic, view: p.View,
		calm:    rate.NewLimiter(rate.Limit(p.Options.rate), p.Options.rate),
		urgent:  rate.NewLimiter(urgentRate, urgentRate*int(urgentStep)/int(time.Second)),
		targets: map[string]*target{}, differing: map[string]*target{}, requests: newRequests(), wake: make(chan struct{}, 1),
	}
}

// run probes nodes until the context is canceled, which also ends all visits.
func (p *prober) run(ctx context.Context, health cell.Health) error {
	ctx, cancel := context.WithCancel(ctx)
	p.kernel.Open()
	defer p.kernel.Close()
	defer p.running.Wait()
	defer cancel()
	p.restore()
	if err := p.subscribe(); err != nil {
		return err
	}
	defer p.rows.Close()
	for {
		txn := watchdog.Snapshot(ctx, p.db, p.nodes)
		changed := statedb.NewWatchSet()
		complete := changefeed.Watch(txn, changed, p.nodes)
		_, trafficChanged := p.traffic.AllWatch(txn)
		changed.Add(trafficChanged)
		var u update
		p.absorb(&u)
		p.follow(txn, changed, complete, &u)
		p.applyTraffic(txn, &u)
		p.suspects(&u)
		if err := p.commit(u, complete); err != nil {
			return err
		}
		p.completeRequests()
		pause := p.start(ctx)
		p.report(p.db.ReadTxn(), health)
		watchdog.IdleFor(ctx, pause)
		if p.wait(ctx, changed, pause) != nil {
			return nil //nolint:nilerr // the agent stops
		}
	}
}

// restore creates targets from the table after the loop was started again. Results of visits of the previous loop are lost.
func (p *prober) restore() {
	clear(p.targets)
	p.mu.Lock()
	p.ended = nil
	p.mu.Unlock()
	clear(p.differing)
	p.view.reset()
	p.busy, p.followed, p.self, p.complete, p.trafficRevision, p.earliest = 0, 0, nil, false, 0, time.Time{}
	txn := p.db.ReadTxn()
	for row := range p.table.All(txn) {
		t := p.targets[row.Node]
		if t == nil {
			t = &target{name: row.Node, due: p.soon(txn), since: time.Now()}
			p.targets[row.Node] = t
		}
		t.paths = append(t.paths, row)
	}
	for row := range p.views.All(txn) {
		if t := p.targets[row.Node]; t != nil {
			t.view = comparison{last: difference{row.Difference, row.Nodes - row.Own}, since: row.Since, row: row}
			p.differing[row.Node] = t
		}
	}
}

// soon returns a random time within the spread of the cluster. All agents see a new node at the same time and must not all probe it at once.
func (p *prober) soon(txn statedb.ReadTxn) time.Time {
	return time.Now().Add(rand.N(max(p.options.spread(p.nodes.NumObjects(txn)), 1)))
}

// update has the changes of one round to the tables.
type update struct {
	put, gone []*nodehealth.Path
	views     []*target         // targets whose difference changed
	agreed    []*nodeviews.View // rows of differences that have ended
}

// absorb applies the results of finished visits to the rows. It drops results of addresses that the node no longer has.
func (p *prober) absorb(u *update) {
	p.mu.Lock()
	ended := p.ended
	p.ended = nil
	p.mu.Unlock()
	for _, v := range ended {
		p.busy -= len(v.paths)
		t := v.target
		t.busy, t.done = false, v.began
		if p.targets[t.name] != t {
			continue // the node was removed
		}
		p.hindrance = nil
		current, compared := true, false
		for i, r := range v.results {
			for _, o := range []outcome{r.icmp, r.http} {
				if errors.Is(o.err, icmpecho.ErrLocal) {
					p.hindrance = o.err
				}
			}
			known := slices.IndexFunc(t.paths, v.paths[i].Is)
			if known < 0 {
				current = false
				continue
			}
			row := *t.paths[known]
			row.ICMP, row.HTTP = after(row.ICMP, r.icmp), after(row.HTTP, r.http)
			t.paths[known] = &row
			u.put = append(u.put, &row)
			if v.web[i] && r.http.err == nil && !compared {
				compared = true
				p.compare(t, r.digest, v.began, u)
			}
		}
		if current { // otherwise replace has scheduled the new address
			t.due = time.Now().Add(p.next(t))
		}
		p.advance(t.due)
	}
}

// next returns the time until the next visit of a target. A node with a failed probe but no verdict is visited again soon, an unreachable node more often than
// the others. A node without flows is visited as part of a sample, unless its agent differs: otherwise a difference that has ended would be reported for hours.
func (p *prober) next(t *target) time.Duration {
	least, mean := p.options.interval(len(p.targets)), p.options.sampled(len(p.targets))
	interval := least - rand.N(least/10) // jitter, so that agents that started together do not probe together
	switch {
	case t.open():
		return min(interval, suspectInterval)
	case slices.ContainsFunc(t.paths, func(row *nodehealth.Path) bool { return row.State() == nodehealth.Unreachable }):
		return min(interval, p.options.base)
	case t.view.followed:
		return min(interval, viewTimeout)
	case !t.used && t.name != p.agent.NodeName && t.view.since.IsZero():
		// The sample of each interval is random, but has no node of the previous one.
		return interval + time.Duration(min(rand.ExpFloat64(), maxSampled)*float64(mean-least))
	}
	return interval
}

// start starts visits of due targets: nodes whose pods have flows with pods of this node first, then in the order of due times. It skips nodes that traffic
// proves reachable. While a client waits, all targets are due that were not visited since its request or have an open verdict. It returns the time until the
// next visit, at least one step.
func (p *prober) start(ctx context.Context) (pause time.Duration) {
	now := time.Now()
	since, asked := p.requests.latest()
	step, limiter := calmStep, p.calm
	if asked {
		step, limiter = urgentStep, p.urgent
	}
	if !asked && now.Before(p.earliest) {
		return max(step, p.earliest.Sub(now))
	}
	var due []*target
	next := now.Add(time.Hour)
	interval := p.options.interval(len(p.targets))
	for _, t := range p.targets {
		if !asked && !t.busy && !t.due.After(now) {
			if due := t.spare(now, interval); !due.IsZero() {
				t.due = due
			}
		}
		switch {
		case t.busy:
		case !t.due.After(now) || asked && (t.began.Before(since) || t.open()):
			due = append(due, t)
		case t.due.Before(next):
			next = t.due
		}
	}
	slices.SortFunc(due, func(a, b *target) int {
		if asked {
			return a.began.Compare(b.began)
		}
		if a.used != b.used {
			return map[bool]int{true: -1, false: 1}[a.used]
		}
		return a.due.Compare(b.due)
	})
	lean := p.options.lean(len(p.targets))
	for _, t := range due {
		v := plan(t, asked, lean)
		if len(v.paths) == 0 {
			t.began, t.done, t.due = now, now, now.Add(interval)
			if t.due.Before(next) {
				next = t.due
			}
			continue
		}
		if p.busy+len(v.paths) > maxBusy || !limiter.AllowN(now, 1) {
			p.earliest = now
			return step
		}
		p.visit(ctx, v)
	}
	p.earliest = next
	return max(step, next.Sub(now))
}

// plan selects the probes of a visit: ICMP for all addresses, and HTTP, which takes most of the CPU time, for the address whose last HTTP probe is the oldest.
// If lean, every other visit omits HTTP, unless the node's agent is followed. If all is set or a check of the node is not well, HTTP is sent to all addresses.
func plan(t *target, all, lean bool) *visit {
	v := &visit{target: t, began: time.Now()}
	oldest := 0
	for _, row := range t.paths {
		if row.Unasked != "" {
			continue
		}
		v.paths = append(v.paths, row)
		all = all || !well(row.ICMP) || !well(row.HTTP)
		if row.HTTP.Asked.Before(v.paths[oldest].HTTP.Asked) {
			oldest = len(v.paths) - 1
		}
	}
	v.web = make([]bool, len(v.paths))
	for i := range v.web {
		v.web[i] = all || i == oldest && (!lean || !t.lean || t.view.followed)
	}
	return v
}

func (p *prober) visit(ctx context.Context, v *visit) {
	t := v.target
	t.busy, t.began, t.lean = true, v.began, !t.lean
	p.busy += len(v.paths)
	p.running.Go(func() {
		v.do(ctx, p.kernel, p.options, p.agent.NodeName)
		p.mu.Lock()
		p.ended = append(p.ended, v)
		p.mu.Unlock()
		notify(p.wake)
	})
}

// notify sends to a channel with a capacity of one without blocking.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// completeRequests completes the requests for which all targets were visited, if no verdict is open.
func (p *prober) completeRequests() {
	if _, asked := p.requests.latest(); !asked {
		return
	}
	oldest := time.Now()
	for _, t := range p.targets {
		if t.open() {
			return
		}
		if t.done.Before(oldest) {
			oldest = t.done
		}
	}
	p.requests.complete(oldest)
}

// commit writes the rows of one round.
func (p *prober) commit(u update, complete bool) error {
	if done, _ := p.table.Initialized(p.db.ReadTxn()); len(u.put)+len(u.gone)+len(u.views)+len(u.agreed) == 0 && (done || !complete) {
		return nil
	}
	txn := p.db.WriteTxn(p.table, p.views)
	defer txn.Abort()
	for _, row := range u.gone {
		if _, _, err := p.table.Delete(txn, row); err != nil {
			return fmt.Errorf("delete the health of node %s: %w", row.Node, err)
		}
	}
	for _, row := range u.put {
		if t := p.targets[row.Node]; t == nil || !slices.Contains(t.paths, row) {
			continue // replaced in the same round
		}
		if _, _, err := p.table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert the health of node %s: %w", row.Node, err)
		}
	}
	if err := p.commitViews(txn, u); err != nil {
		return err
	}
	if complete {
		p.initialized(txn)
	}
	txn.Commit()
	return nil
}

// report sets the health of the module. It is degraded when probes cannot be sent, and when agents know other nodes than this one. An unreachable node does not
// degrade it.
func (p *prober) report(txn statedb.ReadTxn, health cell.Health) {
	if p.hindrance != nil {
		health.Degraded("some probes cannot be sent", errors.New(describe(p.hindrance)))
		return
	}
	if len(p.differing) > 0 {
		var some []error
		for row := range p.views.All(txn) {
			if len(some) < shownViews {
				some = append(some, errors.New(row.Sentence()))
			}
		}
		health.Degraded(fmt.Sprintf("%d agents know other nodes than this one", len(p.differing)), errors.Join(some...))
		return
	}
	health.OK(p.options.rhythm(len(p.targets)))
}

// wait waits for a step, and then until the pause is over, a node has changed or a visit has ended. A request ends both waits. It returns only errors of ctx.
func (p *prober) wait(ctx context.Context, changed *statedb.WatchSet, pause time.Duration) error {
	step := calmStep
	if _, asked := p.requests.latest(); asked {
		step = urgentStep
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.requests.arrived:
		return nil
	case <-time.After(step):
	}
	if pause <= step {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, pause-step)
	defer cancel()
	changed.Add(p.wake, p.requests.arrived)
	_, _ = changed.Wait(limited, 0)
	return ctx.Err()
}
