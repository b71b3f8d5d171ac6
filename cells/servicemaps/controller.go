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

// controller is the one loop of the cell.
type controller struct {
	params
	seed  maglev.Seed
	alive func() // says that a pass goes on: after each piece of work of which there is a known number
	*inForce

	frontendChanges *changes.Feed[*frontends.Frontend]
	backendChanges  *changes.Feed[*backends.Backend]
	// again are rows that could not be brought into force, by the keys of their entries and by id, each with why; nil is for those whose
	// entries somebody else has changed.
	again         map[bpf.ServiceKey]error
	againBackends map[uint32]error
	// leaving are entries that nobody wants and that are still there; so are the backends.
	leaving map[bpf.ServiceKey]error
	orphans map[uint32]error
	untidy  map[uint32]error // frontends that have belongings too many, by id
	later   later

	complete bool // both tables are, so what no row wants goes
	roomier  bool // something has gone from a map
	retry    time.Duration
	retryAt  time.Time
	verified int               // times that maps were read back
	unread   error             // why that failed the last time
	refused  map[string]uint64 // what found no room, by map
	told     []servicemapusage.Usage
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
		leaving: map[bpf.ServiceKey]error{}, orphans: map[uint32]error{}, untidy: map[uint32]error{}, refused: map[string]uint64{},
		later: later{since: map[bpf.ServiceKey]time.Time{}}}, nil
}

func register(jobs job.Group, p params) error {
	c, err := newController(p)
	if err == nil {
		heartbeat.Follow(jobs, p.Frontends.Table, (*frontends.Frontend).GetStatus, frontends.FirstInitializer)
		heartbeat.AddRetried(jobs, "write-services", c.run, minRetry, maxRetry)
	}
	return err
}

// run has no settle time: one change shall be in force at once, and what comes meanwhile is the next pass. It reads the maps back as well,
// because nobody else knows what was written, and then nobody writes meanwhile.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	c.alive = func() { heartbeat.Busy(ctx) }
	if err := c.begin(); err != nil {
		health.Degraded("The maps of services cannot be read; what they say stays in force", err)
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

// sooner is the shorter of two waits, of which the first may be 0 for never.
func sooner(a, b time.Duration) time.Duration {
	b = max(b, time.Nanosecond)
	if a == 0 {
		return b
	}
	return min(a, b)
}

// sleep waits for a change, or for some time when that is not 0. It tells whether to go on.
func sleep(ctx context.Context, changed *statedb.WatchSet, d time.Duration) bool {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if d > 0 {
		wait, cancel = context.WithTimeout(ctx, d)
	}
	defer cancel()
	_, _ = changed.Wait(wait, 0) // an error is the end of the time or of ctx
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

// report says how much is in force, or what is not and why.
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
		health.Degraded(fmt.Sprintf("%d entries of services are not as they should be", n), errors.Join(errs...))
		return
	}
	if c.unread != nil {
		health.Degraded("The maps of services cannot be read back; what somebody else changes there is not put right", c.unread)
		return
	}
	health.OK(fmt.Sprintf("Entries of frontends: %d, of backends: %d", len(c.entries), len(c.backends)))
}

// problems are all that is not as it should be.
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

// pass brings the maps up to a snapshot, as far as that is possible now. The order is the point of this cell: backends, then what entries name
// (slots, tables, members, ranges), then the entries, and only then goes what nobody needs any more. It says after which time another pass is
// due although nothing has changed; 0 for never.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) time.Duration {
	due := c.release(now) || c.roomier || !now.Before(c.retryAt)
	c.roomier = false
	c.later.begin(now)

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

// wait says when to look again. What fails is tried later and later; a pass that has tried nothing again, because only a change was due, does not
// postpone that: where something changes all the time, it would never come.
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

// completed notes when both tables are complete: then everything in the maps that no row wants has to go.
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
