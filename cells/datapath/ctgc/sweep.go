package ctgc

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// sweepShare bounds the time of sweeps to this fraction of any longer time: a fiftieth of a CPU if backends change all the time.
	sweepShare = 50
	// sweepSpan is the time whose fraction sweeps may take at once: the three sweeps of a single change do not wait, even with full maps.
	sweepSpan = 10 * time.Second
)

// sweepBudget limits the time of sweeps, in microseconds.
type sweepBudget struct{ limiter *rate.Limiter }

func newSweepBudget() sweepBudget {
	perSecond := int(time.Second/time.Microsecond) / sweepShare
	return sweepBudget{rate.NewLimiter(rate.Limit(perSecond), perSecond*int(sweepSpan/time.Second))}
}

// rest returns the time to wait after a sweep of duration took.
func (b sweepBudget) rest(took time.Duration) time.Duration {
	r := b.limiter.ReserveN(time.Now(), int(took.Microseconds()))
	if !r.OK() { // the sweep alone took more than the budget of a span
		return sweepShare * took
	}
	return r.Delay()
}

// lateSweeps are the delays of the sweeps after the immediate one: until the maps of services have followed the tables, programs translate to removed backends.
var lateSweeps = []time.Duration{200 * time.Millisecond, 2 * time.Second}

// sweep scans the translated flows whenever services or backends have changed, so that clients get other backends with their next packet. It evaluates no other
// property of flows, because it runs often.
func (a *access) sweep(ctx context.Context, health cell.Health) error {
	health.OK("waiting for services")
	defer func() {
		if ctx.Err() != nil {
			a.served.close()
		}
	}()
	var late []time.Duration
	budget := newSweepBudget()
	for {
		txn := a.db.ReadTxn()
		_, frontends := a.served.tables.Frontends.AllWatch(txn)
		_, backends := a.served.tables.Backends.AllWatch(txn)
		frontendsKnown, backendsKnown := completes(txn, a.served.tables.Frontends), completes(txn, a.served.tables.Backends)
		watchdog.Busy(ctx)
		took, n, err := a.sweepOnce()
		if err != nil {
			return fmt.Errorf("collect flows of removed services: %w", err)
		}
		if a.served.replies.forget() && len(late) == 0 {
			late = []time.Duration{replyTimeout}
		}
		health.OK(fmt.Sprintf("%d entries scanned", n))
		if watchdog.Sleep(ctx, budget.rest(took)) != nil {
			return nil
		}
		var timer <-chan time.Time
		if len(late) > 0 {
			timer = time.After(late[0])
		}
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-timer:
			late = late[1:]
		case <-frontends:
			late = lateSweeps
		case <-backends:
			late = lateSweeps
		case <-frontendsKnown:
			late = lateSweeps
		case <-backendsKnown:
			late = lateSweeps
		}
	}
}

// completes returns a channel that is closed when a table becomes complete, which may happen without a change of its rows; nil if the table is complete.
func completes[R any](txn statedb.ReadTxn, table statedb.Table[R]) <-chan struct{} {
	if done, initialized := table.Initialized(txn); !done {
		return initialized
	}
	return nil
}

// sweepOnce returns its duration and the number of entries that it has read. Deletions before an error are counted as well.
func (a *access) sweepOnce() (took time.Duration, entries uint64, err error) {
	begin := time.Now()
	p := &pass{access: a, found: make(map[string]found)}
	defer func() { a.publishSwept(p.found) }()
	for _, m := range natmap.Maps() {
		sum := found{}
		err := p.sweepMap(m, &sum)
		p.found[m.Name] = sum
		if err != nil || p.services == nil {
			return 0, 0, err
		}
		entries += sum.entries
	}
	return time.Since(begin), entries, nil
}

// sweepMap scans one map, while all services are known.
func (p *pass) sweepMap(m natmap.Map, sum *found) error {
	r, _, err := p.nat.ReadNat(m)
	if err != nil {
		return err
	}
	for last := false; !last; {
		var flows []natmap.Flow
		if flows, last, err = r.Next(); err != nil {
			return err
		}
		if p.services, err = p.served.now(p.db); err != nil || p.services == nil {
			return err
		}
		for i := range flows {
			sum.entries++
			if !p.services.gone(&flows[i]) {
				continue
			}
			if _, err := p.deleteServed(&flows[i], sum); err != nil {
				return err
			}
		}
	}
	return nil
}
