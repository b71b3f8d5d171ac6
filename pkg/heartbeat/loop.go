package heartbeat

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
)

// loop is the mark that one goroutine leaves. All its fields but lag are set by that goroutine and read by the monitor.
type loop struct {
	monitor *Monitor
	name    string // module/job
	limit   time.Duration

	busy atomic.Int64           // when its work began or last went on, in the monitor's time, plus one; 0 while it waits
	due  atomic.Int64           // when its wait ends by itself, in the same unit; 0 for never
	seen atomic.Pointer[[]seen] // of tables that it follows

	lag lag // of the monitor
}

// seen is a table as a loop has seen it last.
type seen struct {
	table    statedb.TableMeta
	revision statedb.Revision
}

// lag is since when a table is ahead of what the loop has seen.
type lag struct {
	seen  *[]seen
	since int64
}

type key struct{}

// of returns the loop whose context this is, or nil, on which all methods do nothing.
func of(ctx context.Context) *loop {
	l, _ := ctx.Value(key{}).(*loop)
	return l
}

// Busy says that the loop of this context has work, or that the work goes on: nothing that it does until the next call of
// Busy, [Snapshot] or [Idle] may take longer than 40 s.
func Busy(ctx context.Context) { of(ctx).work() }

// Idle says that the loop of this context waits for something to do, for as long as it takes.
func Idle(ctx context.Context) { of(ctx).rest(0) }

// IdleFor is [Idle] for a wait that ends by itself after d at most.
func IdleFor(ctx context.Context, d time.Duration) { of(ctx).rest(d) }

// Sleep waits for d, idle, and is busy again after that. Its only error is that of ctx, which has ended.
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

// Snapshot begins a pass: the loop of this context is [Busy] with this snapshot of tables, and when it is idle again it waits
// on watch channels that any change of them closes.
func Snapshot(ctx context.Context, db *statedb.DB, tables ...statedb.TableMeta) statedb.ReadTxn {
	l, txn := of(ctx), db.ReadTxn()
	if l == nil {
		return txn
	}
	l.work()
	all := make([]seen, len(tables))
	for i, t := range tables {
		all[i] = seen{t, t.Revision(txn)}
	}
	l.seen.Store(&all)
	return txn
}

// With begins a loop of its own below that of the context, for another goroutine of the same job. It ends with end.
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
	freeze("loop " + l.name)
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

// judge says what is wrong with the loop at a time, and for how long.
func (l *loop) judge(now int64, txn statedb.ReadTxn) (wrong string, since int64) {
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
	return l.behind(now, txn)
}

// behind compares the tables with what the loop has seen of them. Any word of the loop begins the time anew.
func (l *loop) behind(now int64, txn statedb.ReadTxn) (wrong string, since int64) {
	all := l.seen.Load()
	if all == nil {
		return "", 0
	}
	for _, s := range *all {
		revision := s.table.Revision(txn)
		if revision <= s.revision {
			continue
		}
		if l.lag.seen != all {
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
