package servicemaps

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/maglev"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

type params struct {
	cell.In

	DB        *statedb.DB
	Agent     agentconfig.Agent
	Config    Config
	Drift     drift.Watch
	Maps      servicemap.Maps
	Frontends frontends.Statuses
	Backends  statedb.Table[*backends.Backend]
	Usage     statedb.RWTable[servicemapusage.Usage]
}

// controller is the only loop of the cell. Its layers are the inputs, the plans ([inForce]), the writer, and the status of rows and of the module.
type controller struct {
	params
	seed   maglev.Seed
	in     *inputs // nil before begin
	writer writer
	retry  retries

	verified int   // number of verifications
	unread   error // error of the last verification
	pace     drift.Pace
	reported []servicemapusage.Usage
}

func newController(p params) (*controller, error) {
	seed, err := maglev.ParseSeed(p.Config.Seed)
	if err != nil {
		return nil, fmt.Errorf("--bpf-lb-maglev-hash-seed=%q: want %d bytes in base64: %w", p.Config.Seed, len(seed), err)
	}
	if err := p.Config.validate(); err != nil {
		return nil, err
	}
	return &controller{params: p, seed: seed, writer: writer{maps: p.Maps, alive: func() {}, left: newBacklog()}}, nil
}

func register(jobs job.Group, p params) error {
	c, err := newController(p)
	if err == nil {
		watchdog.Follow(jobs, p.Frontends.Table, (*frontends.Frontend).GetStatus, frontends.FirstInitializer)
		watchdog.AddRetried(jobs, "write-services", c.run, minRetry, maxRetry)
	}
	return err
}

// run has no debounce interval: a change must be in force at once, and changes during a pass are handled by the next pass. The same loop verifies the maps,
// because only it knows the written entries, and so no write happens during the verification.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	c.writer.alive = func() { watchdog.Busy(ctx) }
	if err := c.begin(); err != nil {
		health.Degraded("the maps of services cannot be read; their entries stay in force", err)
		return err
	}
	defer c.in.close()
	verified := time.Now()
	return loop.Run(ctx, c.DB, loop.Options{Tables: []statedb.TableMeta{c.Frontends.Table, c.Backends}}, func(r *loop.Round) error {
		now := time.Now()
		if now.Sub(verified) >= c.Drift.Interval {
			_ = c.pace.Do(func() error { c.verify(r.Txn); return c.unread }) // report shows the error
			c.writer.alive()
			verified = now
		}
		if wait := c.pass(r.Txn, r.Changed, now); wait > 0 {
			r.Within(wait)
		}
		c.account()
		c.report(health)
		r.Within(time.Until(verified.Add(c.Drift.Interval)))
		return nil
	})
}

// begin reads the maps and subscribes to the tables.
func (c *controller) begin() (err error) {
	if c.writer.known, err = read(c.Maps, uint32(c.Agent.MaglevTableSize), c.seed); err != nil {
		return err
	}
	c.writer.known.namespaceEntries = c.Config.NamespaceEntries
	c.in, err = follow(c.DB, c.Frontends.Table, c.Backends)
	return err
}

// pass updates the maps to a snapshot of the tables, as far as possible. The order of writes is essential: backends, then everything that entries name (slots,
// tables, members, ranges), then the entries, and only after them the removal of unused parts. It returns the time after which another pass must run without a
// change; 0 for never.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) time.Duration {
	w := &c.writer
	w.release(now)
	w.known.later.begin(now)
	attempt := w.left.attempts + 1

	// Changed rows precede failed ones: otherwise the backlog would use the last free entries of a map, and the changed rows would be refused.
	rows, orphans := c.in.changedBackends(txn, changed, &w.left)
	for _, id := range orphans {
		w.orphanBackend(id)
	}
	c.retry.begin(now, attempt, &w.known.freed)
	ids, moreBackends := w.left.againBackends.due(&c.retry, func(n *namespace) int { return n.backends }, w.known)
	w.writeBackends(append(rows, c.in.backendsOf(txn, ids, &w.left)...))
	w.alive()
	plans, gone := c.in.changedFrontends(txn, changed, &w.left)
	for _, row := range gone {
		w.gone(row)
	}
	c.retry.begin(now, attempt, &w.known.freed) // backends may have been added
	keys, moreFrontends := w.left.again.due(&c.retry, func(n *namespace) int { return n.entries }, w.known)
	again := c.in.frontendsOf(txn, keys, &w.left)
	plans = append(plans, again...)
	w.writeFrontends(plans, now)
	if c.in.completed(txn, changed) {
		w.removeUnwanted()
	}
	if c.in.complete {
		w.withoutRemoved(now)
	}
	w.leave(now)
	w.alive()
	w.tidy()
	w.alive()
	w.removeBackends()
	w.alive()

	more := (moreBackends || moreFrontends) && (w.written(ids) || slices.ContainsFunc(again, (*plan).progressed))
	c.publish(plans)
	return c.wait(now, more)
}

// wait returns the time until the next pass. The argument more means that the next pass continues the retries.
func (c *controller) wait(now time.Time, more bool) time.Duration {
	d := c.retry.end(now, &c.writer.left, &c.writer.known.freed, more)
	if waiting := c.writer.known.waiting; len(waiting) > 0 {
		d = sooner(d, waiting[0].until.Sub(now))
	}
	return d
}
