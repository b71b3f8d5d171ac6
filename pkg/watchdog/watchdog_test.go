package watchdog_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMonitor_ReportsStalls blocks and releases one part after the other, in fake time.
func TestMonitor_ReportsStalls(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		freeze func(w *world) (thaw func())
		want   string
		within time.Duration
	}{
		"a loop": {func(w *world) func() { w.loop.shut(); w.insert("a"); return w.loop.open },
			"loop bees/follow hangs: its work does not end", time.Minute},
		"a loop that a test blocks": {func(w *world) func() { w.fault.shut(); w.insert("a"); return w.fault.open },
			"loop bees/follow hangs: its work does not end", time.Minute},
		"a loop that misses a change": {func(w *world) func() {
			w.watch.shut()
			w.insert("a")
			time.Sleep(time.Second)
			w.insert("b")
			return w.watch.open
		},
			"loop bees/follow hangs: it has not seen revision 4 of table combs", time.Minute},
		"a timer's run": {func(w *world) func() { w.timer.shut(); time.Sleep(every); return w.timer.open },
			"loop bees/look hangs: its work does not end", time.Minute},
		"an update": {func(w *world) func() { w.update.shut(); w.insert("a", "b"); return w.update.open },
			"loop bees/reconcile-combs hangs: its work does not end", time.Minute},
		"a deletion, with no row left": {func(w *world) func() {
			w.insert("a")
			time.Sleep(time.Second)
			w.remove.shut()
			w.remove1("a")
			return w.remove.open
		}, "loop bees/reconcile-combs hangs: its work does not end", time.Minute},
		"a prune": {func(w *world) func() { w.prune.shut(); time.Sleep(time.Minute); return w.prune.open },
			"loop bees/reconcile-combs hangs: its work does not end", time.Minute},
		"a write transaction": {func(w *world) func() {
			txn := w.db.WriteTxn(w.table)
			return txn.Abort
		}, "table combs cannot be written: a write transaction of pkg/watchdog_test.", 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := build(t)
				time.Sleep(5 * time.Second)
				thaw := c.freeze(w)
				line, took := w.red(t)
				if !strings.HasPrefix(line, c.want) || took > c.within {
					t.Errorf("after %s it says %q, want %q within %s", took, line, c.want, c.within)
				}
				thaw()
				time.Sleep(2 * watchdog.Interval)
				if line, live := w.monitor.Live(t.Context()); !live {
					t.Errorf("after the thaw it says %q", line)
				}
			})
		})
	}
}

// TestMonitor_UnattemptedRow_IsReported has a reconciler whose loop does not run.
func TestMonitor_UnattemptedRow_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, db, table := unattended(t, false)
		w := &world{db: db, table: table}
		steps := func(n int) (found []watchdog.Stall) {
			for range n {
				found = m.Step(time.Second, db.ReadTxn())
			}
			return found
		}
		if got := steps(600); len(got) > 0 {
			t.Fatalf("without rows: %+v", got)
		}
		w.insert("wax")
		if got := steps(29); len(got) > 0 {
			t.Fatalf("too early: %+v", got)
		}
		// Repeated writes of the row do not hide that the reconciler does not attempt it.
		w.insert("wax")
		if got := steps(5); len(got) != 1 || !strings.HasPrefix(got[0].What, "row wax of table combs is pending, and bees/reconcile-combs attempts no row") {
			t.Fatalf("after 34 s: %+v", got)
		}
	})
}

// unattended returns a reconciler that is registered and never runs.
func unattended(t *testing.T, remote bool) (*watchdog.Monitor, *statedb.DB, statedb.RWTable[*comb]) {
	t.Helper()
	db, m := statedb.New(), watchdog.NewMonitor()
	var params reconciler.Params
	h := hive.New(statedb.Cell, job.Cell,
		cell.Provide(cell.NewSimpleHealth, func(h *cell.SimpleHealth) hive.HealthSource { return source{h} }, func() *watchdog.Monitor { return m }),
		cell.Module("bees", "Bees", cell.Invoke(func(p reconciler.Params) { params = p })))
	if err := hive.Populate(h, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	table, err := newTable(db, "combs")
	if err != nil {
		t.Fatal(err)
	}
	register := watchdog.Register[*comb]
	if remote {
		register = watchdog.RegisterRemote[*comb]
	}
	if _, err := register(params, table, (*comb).clone, (*comb).withStatus, (*comb).status, &world{}, nil); err != nil {
		t.Fatal(err)
	}
	return m, db, table
}

// TestLagging: before the table has caught up, any pending row counts as lag, later only a row that is pending for long.
func TestLagging(t *testing.T) {
	t.Parallel()
	m, db, table := unattended(t, false)
	w := &world{db: db, table: table}
	set := func(status reconciler.Status) {
		txn := db.WriteTxn(table)
		_, _, _ = table.Insert(txn, &comb{Name: "wax", Status: status})
		txn.Commit()
	}
	for i, c := range []struct {
		do   func()
		want int
	}{
		{func() { w.insert("wax") }, 1},
		{func() { set(reconciler.StatusError(errors.New("busy"))) }, 0}, // attempted
		{func() { w.insert("wax") }, 0},                                 // pending only briefly, and before the first step
		{func() { set(reconciler.StatusDone()); m.Step(time.Second, db.ReadTxn()) }, 0},
		{func() { w.insert("wax"); m.Step(time.Second, db.ReadTxn()) }, 0},
		{func() {
			for range 11 {
				m.Step(time.Second, db.ReadTxn())
			}
		}, 1},
		{func() { set(reconciler.StatusDone()) }, 0},
	} {
		c.do()
		if got := m.Lagging(db.ReadTxn()); len(got) != c.want || c.want == 1 && got[0] != "row wax of table combs to be in the kernel" {
			t.Errorf("step %d: %q, want %d rows", i, got, c.want)
		}
	}
	remote, db2, table2 := unattended(t, true)
	(&world{db: db2, table: table2}).insert("wax")
	if got := remote.Lagging(db2.ReadTxn()); len(got) != 0 {
		t.Errorf("rows of the API server: %q", got)
	}
	if got := (*watchdog.Monitor)(nil).Lagging(db.ReadTxn()); got != nil {
		t.Errorf("without a monitor: %q", got)
	}
}

// TestFollow: readiness waits for the rows of a loop without a reconciler, but they are not reported as a stall.
func TestFollow(t *testing.T) {
	t.Parallel()
	db, m := statedb.New(), watchdog.NewMonitor()
	table, err := newTable(db, "combs")
	if err != nil {
		t.Fatal(err)
	}
	watchdog.Follow(watchdog.NewGroup(nil, m, cell.FullModuleID{"bees"}), table, (*comb).status, "first")
	watchdog.Follow(watchdog.NewGroup(nil, nil, nil), table, (*comb).status, "first") // no effect without a monitor
	w := &world{db: db, table: table}
	for i, c := range []struct {
		status  reconciler.Status
		seconds int // seconds that pass in this state
		want    int
	}{
		{reconciler.StatusPending(), 0, 1},
		{reconciler.StatusPending(), 600, 1},
		{reconciler.StatusError(errors.New("full")), 0, 0}, // attempted
		{reconciler.StatusPending(), 0, 0},                 // pending only briefly, although the failed row was seen without a step
		{reconciler.StatusDone(), 1, 0},
		{reconciler.StatusPending(), 5, 0}, // pending only briefly
		{reconciler.StatusPending(), 12, 1},
		{reconciler.StatusDone(), 0, 0},
	} {
		txn := w.db.WriteTxn(table)
		_, _, _ = table.Insert(txn, &comb{Name: "wax", Status: c.status})
		txn.Commit()
		for range c.seconds {
			if stalls := m.Step(time.Second, db.ReadTxn()); len(stalls) > 0 {
				t.Errorf("step %d: %+v", i, stalls)
			}
		}
		if got := m.Lagging(db.ReadTxn()); len(got) != c.want || c.want == 1 && got[0] != "row wax of table combs to be in the kernel" {
			t.Errorf("step %d: %q, want %d rows", i, got, c.want)
		}
		set := statedb.NewWatchSet()
		m.Watch(db.ReadTxn(), set)
		w.insert("other")
		w.remove1("other")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := set.Wait(ctx, 0); err != nil {
			t.Errorf("step %d: a change of the table wakes no waiting job: %v", i, err)
		}
		cancel()
	}
}

type source struct{ root *cell.SimpleHealth }

func (s source) ForModule(id cell.FullModuleID) cell.Health { return s.root.NewScope(id.String()) }

// TestMonitor_NoStall_IsHealthy runs ten minutes of fake time with conditions that look like a stall but are none.
func TestMonitor_NoStall_IsHealthy(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(w *world){
		"nothing to do": func(*world) {},
		"failing rows":  func(w *world) { w.failing = errors.New("no route to the API server"); w.insert("a", "b", "c") },
		"a table in flux": func(w *world) {
			go func() {
				for range 600 {
					w.insert("a")
					time.Sleep(time.Second)
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := build(t)
				do(w)
				if line, took := w.red(t); line != "" {
					t.Errorf("after %s: %s", took, line)
				}
			})
		})
	}
}

// TestMonitor_StoppedProcess_IsNoStall stops the process for an hour while its loop is busy and a row is pending.
func TestMonitor_StoppedProcess_IsNoStall(t *testing.T) {
	t.Parallel()
	m, db, table := unattended(t, false)
	(&world{db: db, table: table}).insert("wax")
	began, thaw := make(chan struct{}), make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() {
		_, end := watchdog.Begin(context.Background(), watchdog.NewGroup(nil, m, cell.FullModuleID{"bees"}), "dance")
		defer end()
		close(began)
		<-thaw
	})
	<-began
	for range 5 { // one step each, however long ago the previous one was
		if got := m.Step(time.Hour, db.ReadTxn()); len(got) > 0 {
			t.Fatalf("%+v", got)
		}
	}
	close(thaw)
	loop.Wait()
}

// TestLive_WithoutRecentStep: a result of a monitor that has not stepped for long is not valid.
func TestLive_WithoutRecentStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, db := watchdog.NewMonitor(), statedb.New()
		if line, live := m.Live(t.Context()); !live {
			t.Errorf("before the first step: %s", line)
		}
		m.Step(time.Second, db.ReadTxn())
		time.Sleep(time.Minute)
		if line, live := m.Live(t.Context()); live || !strings.HasPrefix(line, "loop of the monitor hangs") {
			t.Errorf("a minute after the last step: %t %s", live, line)
		}
		go func() { // the process continues: a step follows shortly after the call
			time.Sleep(watchdog.Interval / 2)
			m.Step(time.Minute, db.ReadTxn())
		}()
		if line, live := m.Live(t.Context()); !live {
			t.Errorf("a moment before a step: %s", line)
		}
	})
}

// TestTransactions_DeadlockOfTwo: two goroutines each hold the table that the other wants; both are reported.
func TestTransactions_DeadlockOfTwo(t *testing.T) {
	t.Parallel()
	m := watchdog.NewMonitor()
	db := statedb.New(statedb.WithMetrics(m.Transactions(&statedb.NopMetrics{})))
	wax, err1 := newTable(db, "wax")
	honey, err2 := newTable(db, "honey")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	first, second := db.WriteTxn(wax), db.WriteTxn(honey)
	var blocked sync.WaitGroup
	blocked.Go(func() { db.WriteTxn(honey).Abort() })
	blocked.Go(func() { db.WriteTxn(wax).Abort() })
	var got []watchdog.Stall
	for range 11 {
		got = m.Step(time.Second, db.ReadTxn())
	}
	if len(got) != 2 || !strings.Contains(got[0].What+got[1].What, "table wax") || !strings.Contains(got[0].What+got[1].What, "table honey") {
		t.Errorf("%+v", got)
	}
	first.Abort()
	second.Abort()
	blocked.Wait()
	if got := m.Step(time.Second, db.ReadTxn()); len(got) != 0 {
		t.Errorf("after the end: %+v", got)
	}
}

// A timer starts only after the start hooks of other cells, which may take minutes on a slow machine. It is not a stall before that time is over.
func TestMonitor_TimerDuringSlowStart(t *testing.T) {
	t.Parallel()
	m, db := watchdog.NewMonitor(), statedb.New()
	_ = watchdog.WatchedTimer(watchdog.NewGroup(nil, m, cell.FullModuleID{"bees"}), "look", nil, every)
	after := func(d time.Duration) (stalls []watchdog.Stall) {
		for range d / watchdog.Interval {
			stalls = m.Step(watchdog.Interval, db.ReadTxn())
		}
		return stalls
	}
	if stalls := after(5 * time.Minute); len(stalls) != 0 {
		t.Errorf("during the start: %v", stalls)
	}
	if stalls := after(every + time.Minute); len(stalls) != 1 || stalls[0].What != "loop bees/look hangs: its timer has not fired" {
		t.Errorf("after the start: %v", stalls)
	}
}
