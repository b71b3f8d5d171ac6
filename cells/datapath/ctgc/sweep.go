package ctgc

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/throttle"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// scanRatio bounds the CPU time of the scans of a job: a hundredth of a CPU if backends or prefixes change all the time.
	scanRatio = 100
	// scanBurst is the CPU time that scans may use at once: the three sweeps of a single change do not wait, even with 131,072 flows.
	scanBurst = 200 * time.Millisecond
	// longestSweepRest bounds the pause after a sweep: three million flows need no longer one.
	longestSweepRest = time.Minute
)

// newScanLimit returns the limit of a job that scans the translated flows. The cost is CPU time, because a scan also takes long while other processes use the CPU.
func newScanLimit(longest time.Duration) *throttle.Limit {
	return &throttle.Limit{Ratio: scanRatio, Burst: scanBurst, Max: longest, Measure: throttle.CPUTime}
}

// sweepRest is the minimum pause after a sweep: where backends change all the time, there are five sweeps in a second.
const sweepRest = 200 * time.Millisecond

// lateSweeps are the delays of the sweeps after the immediate one, in addition to sweepRest: until the maps of services have followed the tables, programs
// translate to removed backends.
var lateSweeps = []time.Duration{0, 2 * time.Second}

// sweep scans the translated flows whenever services or backends have changed, or a pod or node has ended that was a backend, so that clients get other backends with their next packet. It evaluates no other
// property of flows, because it runs often.
func (a *access) sweep(ctx context.Context, health cell.Health) error {
	health.OK("waiting for services")
	defer func() {
		if ctx.Err() != nil {
			a.served.close()
		}
	}()
	var late []time.Duration
	sweeps := newScanLimit(longestSweepRest)
	sweeps.Min = sweepRest
	for {
		txn := a.db.ReadTxn()
		_, frontends := a.served.tables.Frontends.AllWatch(txn)
		_, backends := a.served.tables.Backends.AllWatch(txn)
		frontendsKnown, backendsKnown := completes(txn, a.served.tables.Frontends), completes(txn, a.served.tables.Backends)
		ended := a.served.remaining.Begin()
		watchdog.Busy(ctx)
		var n uint64
		var err error
		cost := sweeps.Measure(func() { n, err = a.sweepOnce() })
		a.served.remaining.Check(a.db.ReadTxn(), a.served.tables)
		if err != nil {
			return fmt.Errorf("collect flows of removed services: %w", err)
		}
		if a.served.replies.forget() && len(late) == 0 {
			late = []time.Duration{replyTimeout}
		}
		health.OK(fmt.Sprintf("%d entries scanned", n))
		if watchdog.Sleep(ctx, sweeps.After(cost)) != nil {
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
		case <-ended:
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

// sweepOnce returns the number of entries that it has read. Deletions before an error are counted as well.
func (a *access) sweepOnce() (entries uint64, err error) {
	p := &pass{access: a, found: make(map[string]found)}
	defer func() { a.publishSwept(p.found) }()
	for _, m := range natmap.Maps() {
		sum := found{}
		err := p.sweepMap(m, &sum)
		p.found[m.Name] = sum
		if err != nil || p.services == nil {
			return 0, err
		}
		entries += sum.entries
	}
	return entries, nil
}

// sweepMap scans one map, while all services are known.
func (p *pass) sweepMap(m natmap.Map, sum *found) error {
	r, _, err := p.nat.ReadNat(m)
	if err != nil {
		return err
	}
	defer r.Close()
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
