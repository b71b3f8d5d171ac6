package ctgc

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// calmPause and removalPause are the pauses between two slices of a pass. Expired flows block nothing; quarantined addresses wait for the deletion of flows
	// of removed endpoints.
	calmPause    = 5 * time.Millisecond
	removalPause = time.Millisecond
	// minSpacing is the minimum time between the end of a pass and the start of the next one that programs request: half of the maximum time that
	// a denied flow waits for a pass.
	minSpacing = 500 * time.Millisecond
	// removalSpacing is the minimum time before a pass for removed endpoints, so that the removal of many endpoints causes one pass.
	removalSpacing = time.Second
)

// collector makes passes over the maps of flows. Only its job uses the fields below access.
type collector struct {
	*access

	pace  pace
	began time.Time // start of the last pass; zero before the first
	ended time.Time
	known *locals // when that pass began; nil if not all endpoints were known then

	observed     time.Time // start of the last pass that recorded nodes; zero before the first
	observedTick uint32    // the same in ticks of the kernel
}

func newCollector(c Config, a *access) (*collector, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return &collector{access: a, pace: newPace(c)}, nil
}

func register(jobs job.Group, c *collector) {
	watchdog.AddRetried(jobs, "collect-flows", c.run, minRetry, maxRetry)
	watchdog.AddRetried(jobs, "collect-services", c.sweep, minRetry, maxRetry)
	watchdog.AddRetried(jobs, "check-remaining-addresses", func(ctx context.Context, health cell.Health) error {
		return c.served.remaining.Run(ctx, health, c.db, c.served.tables)
	}, minRetry, maxRetry)
	watchdog.AddRetried(jobs, "collect-lost-addresses", c.followNode, minRetry, maxRetry)
	watchdog.AddRetried(jobs, "collect-kept-addresses", c.followExclusions, minRetry, maxRetry)
	watchdog.AddRetried(jobs, "hear-signals", c.receiveSignals, minRetry, maxRetry)
}

// run makes a pass at once, and again at each request and interval.
func (c *collector) run(ctx context.Context, health cell.Health) error {
	pause := time.Duration(0)
	for {
		watchdog.Busy(ctx)
		last := c.began
		c.began = time.Now()
		p := &pass{access: c.access, began: c.began, pause: pause, observe: c.newTraffic}
		if err := p.run(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("collect expired flows: %w", err)
		}
		c.ended, c.known = time.Now(), p.known
		if !last.IsZero() {
			c.pace.adapt(p.ratio(), c.began.Sub(last))
		}
		c.publish(p)
		if p.traffic != nil {
			p.traffic.publish(c.db, c.replied)
		}
		health.OK(c.report(p))
		var err error
		if pause, err = c.await(ctx); err != nil {
			return nil //nolint:nilerr // the agent stops
		}
	}
}

func (c *collector) report(p *pass) string {
	flows, translated := uint64(0), uint64(0)
	for _, m := range ctmap.Maps() {
		flows += p.found[m.Name].entries
	}
	for _, m := range natmap.Maps() {
		translated += p.found[m.Name].entries
	}
	return fmt.Sprintf("%d flows, %d NAT entries; next pass in %s", flows, translated, c.interval())
}

// await waits until a pass is required and returns the pause between its slices.
func (c *collector) await(ctx context.Context) (time.Duration, error) {
	timer := time.NewTimer(time.Until(c.began.Add(c.interval())))
	defer timer.Stop()
	for {
		watchdog.Busy(ctx)
		removed, changes := c.removals()
		if removed {
			return c.space(ctx, removalSpacing, removalPause)
		}
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-timer.C:
			return calmPause, nil
		case <-c.signals.wake:
			return c.space(ctx, minSpacing, 0)
		case <-changes.endpoints:
		case <-changes.addresses:
		}
		if err := c.settle(ctx); err != nil {
			return 0, err
		}
	}
}

// settle delays the next read of the tables, so that a burst of removed pods causes one pass. A signal ends the delay.
func (c *collector) settle(ctx context.Context) error {
	timer := time.NewTimer(removalSpacing / 4)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.signals.wake:
		c.signals.hurry() // keep the signal for the next wait
	case <-timer.C:
	}
	return nil
}

// space waits until the time least has passed since the end of the last pass. A signal shortens the wait to minSpacing and removes the pauses. The next pass
// serves all requests that are pending when space returns.
func (c *collector) space(ctx context.Context, least, pause time.Duration) (time.Duration, error) {
	urgent := pause == 0
	for {
		wait := time.Until(c.ended.Add(least))
		if wait <= 0 {
			break
		}
		timer := time.NewTimer(wait)
		wake := c.signals.wake
		if urgent {
			wake = nil // a signal has already shortened the wait
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		case <-timer.C:
		case <-wake:
			timer.Stop()
			urgent, least, pause = true, minSpacing, 0
		}
	}
	if urgent {
		c.drain()
	}
	return pause, nil
}

// drain removes a pending request, because the next pass serves it.
func (c *collector) drain() {
	select {
	case <-c.signals.wake:
	default:
	}
}

// watched channels are closed when the result of [collector.removals] may have changed. A nil channel is never closed.
type watched struct{ endpoints, addresses <-chan struct{} }

// removals reports whether a removal requires a pass: an endpoint that the last pass knew has been removed, or an address is quarantined that was in use when
// the last pass began.
func (c *collector) removals() (bool, watched) {
	txn := c.db.ReadTxn()
	now := readLocals(txn, c.endpoints)
	if now == nil {
		_, initialized := c.endpoints.Initialized(txn)
		return false, watched{endpoints: initialized}
	}
	if c.known == nil || c.known.lost(now) {
		return true, watched{}
	}
	rows, changed := c.addresses.AllWatch(txn)
	for row := range rows {
		if row.State == ipamaddresses.Quarantined && !c.began.After(row.Since) {
			return true, watched{}
		}
	}
	return false, watched{now.changed, changed}
}
