package servicemaps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/maglev"
	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
)

type params struct {
	cell.In

	DB        *statedb.DB
	Agent     settings.Agent
	Config    Config
	Drift     drift.Watch
	Maps      servicemaps.Maps
	Frontends frontends.Statuses
	Backends  statedb.Table[*backends.Backend]
	Usage     statedb.RWTable[servicemapusage.Usage]
}

// controller is the state of the only loop of the cell.
type controller struct {
	params
	seed  maglev.Seed
	alive func() // reports progress of a pass; called after each step of bounded size
	*inForce

	frontendChanges *changes.Feed[*frontends.Frontend]
	backendChanges  *changes.Feed[*backends.Backend]
	// again are rows that could not be brought into force, with the errors, by the keys of their entries and by id. The error is nil if another writer has
	// changed their entries.
	again         map[bpf.ServiceKey]error
	againBackends map[uint32]error
	// leaving are entries without a row that are still in the map, orphans such backends.
	leaving  map[bpf.ServiceKey]error
	orphans  map[uint32]error
	untidy   map[uint32]error // frontends with members or ranges to remove, by id
	deferred deferred

	complete bool // both tables are complete, so entries without a row are removed
	roomier  bool // an entry was removed from a map
	retry    time.Duration
	retryAt  time.Time
	verified int               // number of verifications
	unread   error             // error of the last verification
	rejected map[string]uint64 // number of refused writes of full maps, by map
	reported []servicemapusage.Usage
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

func newController(p params) (*controller, error) {
	seed, err := maglev.ParseSeed(p.Config.Seed)
	if err != nil {
		return nil, fmt.Errorf("--bpf-lb-maglev-hash-seed=%q: want %d bytes in base64: %w", p.Config.Seed, len(seed), err)
	}
	return &controller{params: p, seed: seed, alive: func() {}, again: map[bpf.ServiceKey]error{}, againBackends: map[uint32]error{},
		leaving: map[bpf.ServiceKey]error{}, orphans: map[uint32]error{}, untidy: map[uint32]error{}, rejected: map[string]uint64{},
		deferred: deferred{since: map[bpf.ServiceKey]time.Time{}}}, nil
}

func register(jobs job.Group, p params) error {
	c, err := newController(p)
	if err == nil {
		heartbeat.Follow(jobs, p.Frontends.Table, (*frontends.Frontend).GetStatus, frontends.FirstInitializer)
		heartbeat.AddRetried(jobs, "write-services", c.run, minRetry, maxRetry)
	}
	return err
}

// run has no debounce interval: a change must be in force at once, and changes during a pass are handled by the next pass. The same loop verifies the maps,
// because only it knows the written entries, and so no write happens during the verification.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	c.alive = func() { heartbeat.Busy(ctx) }
	if err := c.begin(); err != nil {
		health.Degraded("The maps of services cannot be read; their entries stay in force", err)
		return err
	}
	defer c.frontendChanges.Close()
	defer c.backendChanges.Close()
	for verified := time.Now(); ; {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Frontends.Table, c.Backends)
		changed := statedb.NewWatchSet()
		now := time.Now()
		if now.Sub(verified) >= c.Drift.Interval {
			c.verify(txn)
			c.alive()
			verified = now
		}
		wait := c.pass(txn, changed, now)
		c.account()
		c.report(health)
		heartbeat.Idle(ctx)
		if !sleep(ctx, changed, sooner(wait, time.Until(verified.Add(c.Drift.Interval)))) {
			return nil
		}
	}
}

// sooner returns the shorter of two waits. The first may be 0, which means forever.
func sooner(a, b time.Duration) time.Duration {
	b = max(b, time.Nanosecond)
	if a == 0 {
		return b
	}
	return min(a, b)
}

// sleep waits for a change, or for at most d if d is not 0. It reports whether ctx is still valid.
func sleep(ctx context.Context, changed *statedb.WatchSet, d time.Duration) bool {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if d > 0 {
		wait, cancel = context.WithTimeout(ctx, d)
	}
	defer cancel()
	_, _ = changed.Wait(wait, 0) // an error means that the time or ctx has ended
	return ctx.Err() == nil
}

// begin reads the maps and subscribes to the tables.
func (c *controller) begin() (err error) {
	if c.inForce, err = read(c.Maps, uint32(c.Agent.MaglevTableSize)); err != nil {
		return err
	}
	txn := c.DB.WriteTxn(c.Frontends.Table, c.Backends)
	defer txn.Commit()
	var err2 error
	c.frontendChanges, err = changes.Follow(txn, c.Frontends.Table)
	c.backendChanges, err2 = changes.Follow(txn, c.Backends)
	return errors.Join(err, err2)
}

// report reports the number of entries in force, or the problems.
func (c *controller) report(health cell.Health) {
	const most = 3
	var errs []error
	n := 0
	c.problems(func(err error) {
		if errors.Is(err, errLater) {
			return
		}
		if n++; n <= most {
			errs = append(errs, err)
		}
	})
	if n > 0 {
		health.Degraded(fmt.Sprintf("%d entries of services are out of date", n), errors.Join(errs...))
		return
	}
	if c.unread != nil {
		health.Degraded("The maps of services cannot be verified; changes by other writers are not repaired", c.unread)
		return
	}
	health.OK(fmt.Sprintf("Entries of frontends: %d, of backends: %d", len(c.entries), len(c.backends)))
}

// problems calls do for each error that is not resolved.
func (c *controller) problems(do func(error)) {
	for _, all := range []map[uint32]error{c.againBackends, c.orphans, c.untidy} {
		for _, err := range all {
			if err != nil {
				do(err)
			}
		}
	}
	for _, all := range []map[bpf.ServiceKey]error{c.again, c.leaving} {
		for _, err := range all {
			if err != nil {
				do(err)
			}
		}
	}
}

// pass updates the maps to a snapshot of the tables, as far as possible. The order of writes is essential: backends, then everything that entries name (slots,
// tables, members, ranges), then the entries, and only after them the removal of unused parts. It returns the time after which another pass must run without a
// change; 0 for never.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) time.Duration {
	due := c.release(now) || c.roomier || !now.Before(c.retryAt)
	c.roomier = false
	c.deferred.begin(now)

	rows := c.changedBackends(txn, changed, due)
	added := c.writeBackends(rows)
	c.alive()
	plans := c.changedFrontends(txn, changed, due || added)
	c.writeFrontends(plans, now)
	c.completed(txn, changed)
	c.leave(now)
	c.alive()
	c.tidy()
	c.alive()
	c.removeBackends()
	c.alive()

	c.publish(plans)
	return c.wait(now, due)
}

// wait returns the time until the next pass. The pause between retries grows. A pass that retried nothing, because it only handled a change, does not postpone
// the retry: otherwise continuous changes would prevent it.
func (c *controller) wait(now time.Time, tried bool) (d time.Duration) {
	failing := false
	c.problems(func(err error) { failing = failing || !errors.Is(err, errLater) })
	switch {
	case !failing:
		c.retry, c.retryAt = 0, time.Time{}
	case c.roomier:
		c.retry, c.retryAt = time.Nanosecond, now.Add(time.Nanosecond)
	case tried || c.retry == 0:
		c.retry = min(max(2*c.retry, minRetry), maxRetry)
		c.retryAt = now.Add(c.retry)
	}
	if failing {
		d = max(c.retryAt.Sub(now), time.Nanosecond)
	}
	if len(c.waiting) > 0 {
		d = sooner(d, c.waiting[0].until.Sub(now))
	}
	return d
}

// completed records when both tables are complete: from then on everything in the maps without a row is removed.
func (c *controller) completed(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	if c.complete {
		return
	}
	known, in := c.Frontends.Table.Initialized(txn)
	if !known {
		changed.Add(in)
		return
	}
	if known, in = c.Backends.Initialized(txn); !known {
		changed.Add(in)
		return
	}
	c.complete = true
	for key, e := range c.entries {
		if !e.wanted {
			c.leaving[key] = nil
		}
	}
	for id, b := range c.backends {
		if !b.wanted {
			c.orphans[id] = nil
		}
	}
	for id, b := range c.belong {
		if !b.wanted {
			c.untidy[id] = nil
		}
	}
}
