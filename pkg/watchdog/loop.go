package watchdog

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
)

// loop is the state that one goroutine publishes. The goroutine sets all fields except lag, and the monitor reads them.
type loop struct {
	monitor *Monitor
	name    string // module/job
	limit   time.Duration

	busy     atomic.Int64                   // last call of Busy or Snapshot, in the monitor's time, plus one; 0 while idle
	due      atomic.Int64                   // time at which its wait ends by itself, in the monitor's time; 0 for never
	lastRead atomic.Pointer[[]readRevision] // revisions of the tables that it follows

	lag lag // used only by the monitor
}

// readRevision is the last revision of a table that a loop has read.
type readRevision struct {
	table    statedb.TableMeta
	revision statedb.Revision
}

// lag is the time since which a table has been newer than the loop's snapshot.
type lag struct {
	lastRead *[]readRevision
	since    int64
}

type key struct{}

// of returns the loop of a context, or nil, on which all methods have no effect.
func of(ctx context.Context) *loop {
	l, _ := ctx.Value(key{}).(*loop)
	return l
}

// Busy reports that the loop of this context is busy, or still busy: the time until its next call of Busy, [Snapshot] or [Idle] must not exceed 40 s.
func Busy(ctx context.Context) { of(ctx).work() }

// Idle reports that the loop of this context waits for work, for any time.
func Idle(ctx context.Context) { of(ctx).rest(0) }

// IdleFor is [Idle] for a wait that ends by itself after d at most.
func IdleFor(ctx context.Context, d time.Duration) { of(ctx).rest(d) }

// Sleep waits for d as idle and then calls Busy. The only possible error is the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	IdleFor(ctx, d)
	defer Busy(ctx)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Snapshot starts a pass: the loop of this context is [Busy] with this snapshot of tables. When it is idle again, it must wait on watch channels that
// close with any change of these tables.
func Snapshot(ctx context.Context, db *statedb.DB, tables ...statedb.TableMeta) statedb.ReadTxn {
	l, txn := of(ctx), db.ReadTxn()
	if l == nil {
		return txn
	}
	l.work()
	all := make([]readRevision, len(tables))
	for i, t := range tables {
		all[i] = readRevision{t, t.Revision(txn)}
	}
	l.lastRead.Store(&all)
	return txn
}

// With starts a child of the loop of the context, for another goroutine of the same job. The caller must call end.
func With(ctx context.Context, name string) (inner context.Context, end func()) {
	parent := of(ctx)
	if parent == nil {
		return ctx, func() {}
	}
	l := parent.monitor.begin(parent.name + "/" + name)
	return context.WithValue(ctx, key{}, l), l.end
}

func (l *loop) work() {
	if l == nil {
		return
	}
	l.busy.Store(l.monitor.clock.Load() + 1)
	if fault := l.monitor.Fault; fault != nil {
		fault(l.name)
	}
}

func (l *loop) rest(d time.Duration) {
	if l == nil {
		return
	}
	due := int64(0)
	if d > 0 {
		due = l.monitor.clock.Load() + int64(d)
	}
	l.due.Store(due)
	l.busy.Store(0)
}

func (l *loop) end() { l.monitor.forget(l) }

// evaluate returns the fault of the loop at a time, and since when.
func (l *loop) evaluate(now int64, txn statedb.ReadTxn) (wrong string, since int64) {
	if busy := l.busy.Load(); busy != 0 {
		l.lag = lag{}
		if now-(busy-1) > int64(l.limit) {
			return "loop " + l.name + " hangs: its work does not end", busy - 1
		}
		return "", 0
	}
	if due := l.due.Load(); due != 0 && now-due > int64(idleLimit) {
		return "loop " + l.name + " hangs: its timer has not fired", due
	}
	return l.lagging(now, txn)
}

// lagging compares the tables with the revisions that the loop has read. Every call of the loop restarts the time.
func (l *loop) lagging(now int64, txn statedb.ReadTxn) (wrong string, since int64) {
	all := l.lastRead.Load()
	if all == nil {
		return "", 0
	}
	for _, s := range *all {
		revision := s.table.Revision(txn)
		if revision <= s.revision {
			continue
		}
		if l.lag.lastRead != all {
			l.lag = lag{all, now}
		}
		if now-l.lag.since > int64(idleLimit) {
			return fmt.Sprintf("loop %s hangs: it has not seen revision %d of table %s", l.name, revision, s.table.Name()), l.lag.since
		}
		return "", 0
	}
	l.lag = lag{}
	return "", 0
}
