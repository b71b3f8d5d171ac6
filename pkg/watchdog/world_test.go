package watchdog_test

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// comb is a table row.
type comb struct {
	Name   string
	Status reconciler.Status
}

func (c *comb) clone() *comb                         { d := *c; return &d }
func (c *comb) withStatus(s reconciler.Status) *comb { c.Status = s; return c }
func (c *comb) status() reconciler.Status            { return c.Status }
func (c *comb) TableHeader() []string                { return []string{"Name"} }
func (c *comb) TableRow() []string                   { return []string{c.Name} }
func newTable(db *statedb.DB, name string) (statedb.RWTable[*comb], error) {
	return statedb.NewTable(db, name, indexes.Unique("name", indexes.String, func(c *comb) string { return c.Name }))
}

// world is a module with a loop that follows a table, a timer and a reconciler. Each of them blocks at its gate while the gate is shut.
type world struct {
	db      *statedb.DB
	table   statedb.RWTable[*comb]
	monitor *watchdog.Monitor
	jobs    job.Group

	loop, timer, update, remove, prune, watch, fault gate
	failing                                          error
}

// gate blocks a loop while it is shut. Loops read it at any time, hence the atomic value.
type gate struct{ shutBy atomic.Pointer[chan struct{}] }

func (g *gate) shut() { ch := make(chan struct{}); g.shutBy.Store(&ch) }
func (g *gate) open() { close(*g.shutBy.Swap(nil)) }
func (g *gate) pass() {
	if ch := g.shutBy.Load(); ch != nil {
		<-*ch
	}
}

func (w *world) Update(context.Context, statedb.ReadTxn, statedb.Revision, *comb) error {
	w.update.pass()
	return w.failing
}

func (w *world) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *comb) error {
	w.remove.pass()
	return nil
}

func (w *world) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*comb, statedb.Revision]) error {
	w.prune.pass()
	return nil
}

const every = 30 * time.Second

// build starts the hive and a goroutine that steps the monitor each second; no other goroutine may. A test that holds a lock must release it before the
// test ends, also after a failure: a goroutine that waits for a mutex stops the time of a bubble, so the hive would never stop.
func build(t *testing.T) *world {
	t.Helper()
	w := &world{}
	h := hive.New(celltest.Infrastructure(),
		cell.Provide(func(m *watchdog.Monitor) statedb.Metrics { return m.Transactions(&statedb.NopMetrics{}) }),
		cell.Module("bees", "Bees", cell.Invoke(func(db *statedb.DB, m *watchdog.Monitor, jobs job.Group, params reconciler.Params) (err error) {
			w.db, w.monitor, w.jobs = db, m, jobs
			m.Fault = func(loop string) {
				if loop == "bees/follow" {
					w.fault.pass()
				}
			}
			if w.table, err = newTable(db, "combs"); err != nil {
				return err
			}
			watchdog.Add(jobs, "follow", w.follow)
			watchdog.AddTimer(jobs, "look", func(context.Context) error { w.timer.pass(); return nil }, every)
			_, err = watchdog.Register(params, w.table, (*comb).clone, (*comb).withStatus, (*comb).status, w, nil,
				reconciler.WithPruning(time.Minute))
			return err
		})))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var stepping sync.WaitGroup
	stepping.Go(func() {
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(watchdog.Interval):
			}
			w.monitor.Step(time.Since(last), w.db.ReadTxn())
		}
	})
	t.Cleanup(func() {
		stop()
		stepping.Wait()
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) follow(ctx context.Context, _ cell.Health) error {
	for {
		txn := watchdog.Snapshot(ctx, w.db, w.table)
		_, changed := w.table.AllWatch(txn)
		w.loop.pass()
		watchdog.Idle(ctx)
		w.watch.pass()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (w *world) insert(names ...string) {
	txn := w.db.WriteTxn(w.table)
	defer txn.Commit()
	for _, name := range names {
		_, _, _ = w.table.Insert(txn, &comb{Name: name, Status: reconciler.StatusPending()})
	}
}

func (w *world) remove1(name string) {
	txn := w.db.WriteTxn(w.table)
	defer txn.Commit()
	_, _, _ = w.table.Delete(txn, &comb{Name: name})
}

// red waits until the monitor reports a stall, and returns the report and the elapsed time.
func (w *world) red(t *testing.T) (string, time.Duration) {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 10*time.Minute {
		if line, live := w.monitor.Live(t.Context()); !live {
			return line, time.Since(began)
		}
		time.Sleep(time.Second)
	}
	return "", time.Since(began)
}
