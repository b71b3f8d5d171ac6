package healthreport

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/bootlog"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a source with its own table, and a clock that advances by a second at each call.
type fixture struct {
	*source
	clock time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := statedb.New()
	table, err := health.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{source: newSource(db, table), clock: time.Unix(1000, 0)}
	f.now = func() time.Time {
		f.clock = f.clock.Add(time.Second)
		return f.clock
	}
	return f
}

func (f *fixture) publishAll(t *testing.T) {
	t.Helper()
	if err := f.publish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) row(t *testing.T, id string) health.Status {
	t.Helper()
	row, _, found := f.table.Get(f.db.ReadTxn(), health.ByID(id))
	if !found {
		t.Fatalf("no row %q", id)
	}
	return row
}

func (f *fixture) revision() uint64 { return f.table.Revision(f.db.ReadTxn()) }

func TestReport_WritesOnlyChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.ForModule(cell.FullModuleID{"agent", "routes"}).NewScope("job-sync")
	h.OK("OK (12us)")
	before := f.revision()
	h.OK("OK (13us) [7]")
	if f.revision() != before {
		t.Error("a report that differs only in its detail was written")
	}
	h.OK("waiting")
	f.publishAll(t)
	if got := f.row(t, "agent.routes/job-sync"); got.Message != "waiting" || got.Count != 1 {
		t.Errorf("row: %+v", got)
	}
	h.Degraded("sync", errors.New("no such device"))
	before = f.revision()
	h.Degraded("sync", errors.New("no such device"))
	if f.revision() != before {
		t.Error("the same failure was written twice")
	}
	h.Degraded("sync", errors.New("busy"))
	got := f.row(t, "agent.routes/job-sync")
	if got.Error != "busy" || got.Level != health.Degraded || got.Count != 2 {
		t.Errorf("row: %+v", got)
	}
	lastOK := got.LastOK
	h.OK("works again")
	got = f.row(t, "agent.routes/job-sync")
	if got.Error != "" || !got.LastOK.After(lastOK) || got.Count != 3 {
		t.Errorf("row after recovery: %+v", got)
	}
}

// The last message of a component that stays OK is in the row after the next publication, and no message that another report has replaced.
func TestReport_NewMessageOfOKComponent_IsPublishedLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reports                   func(h cell.Health)
		message                   string // "" if there is no row
		level                     health.Level
		writes, publicationWrites bool
	}{
		"new message":        {func(h cell.Health) { h.OK("2 nodes"); h.OK("3 nodes") }, "3 nodes", health.OK, false, true},
		"message of the row": {func(h cell.Health) { h.OK("2 nodes"); h.OK("1 nodes") }, "1 nodes", health.OK, false, false},
		"failure":            {func(h cell.Health) { h.OK("2 nodes"); h.Degraded("full", errors.New("no id")) }, "full", health.Degraded, true, false},
		"failure and recovery": {func(h cell.Health) { h.OK("2 nodes"); h.Degraded("full", errors.New("no id")); h.OK("3 nodes") },
			"3 nodes", health.OK, true, false},
		"stop":                {func(h cell.Health) { h.OK("2 nodes"); h.Stopped("end") }, "end", health.Stopped, true, false},
		"closed scope":        {func(h cell.Health) { h.OK("2 nodes"); h.Close() }, "", "", true, false},
		"scope of a next job": {func(h cell.Health) { h.OK("2 nodes"); h.Close(); h.OK("Running") }, "Running", health.OK, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := f.ForModule(cell.FullModuleID{"nodes"})
			h.OK("1 nodes")
			before := f.revision()
			c.reports(h)
			reported := f.revision()
			f.publishAll(t)
			published := f.revision()
			if (reported != before) != c.writes || (published != reported) != c.publicationWrites {
				t.Errorf("revisions %d, after the reports %d, after the publication %d", before, reported, published)
			}
			row, _, found := f.table.Get(f.db.ReadTxn(), health.ByID("nodes/"))
			if found != (c.message != "") || row.Message != c.message || row.Level != c.level {
				t.Errorf("found %t, row: %+v", found, row)
			}
			if f.publishAll(t); f.revision() != published {
				t.Error("the second publication has written again")
			}
		})
	}
}

func TestPublish_ComponentsInOneTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	names := []string{"ids", "maps", "routes"}
	for _, message := range []string{"1 nodes", "2 nodes"} {
		for _, name := range names {
			f.ForModule(cell.FullModuleID{name}).OK(message)
		}
	}
	f.publishAll(t)
	updated := f.row(t, names[0]+"/").UpdatedAt
	for _, name := range names {
		if row := f.row(t, name+"/"); row.Message != "2 nodes" || row.Count != 1 || !row.UpdatedAt.Equal(updated) || !row.LastOK.Equal(updated) {
			t.Errorf("row of %s: %+v", name, row)
		}
	}
}

func TestClose_KeepsDegradedRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	module := f.ForModule(cell.FullModuleID{"loader"})
	module.OK("up")
	fine, broken := module.NewScope("job"), module.NewScope("job-2")
	fine.OK("fine")
	fine.NewScope("child").OK("fine too")
	broken.Degraded("attach lxc1", errors.New("no such device"))
	fine.Close()
	broken.Close()
	if n := f.table.NumObjects(f.db.ReadTxn()); n != 2 {
		t.Errorf("%d rows are left, want the module's and the broken job's", n)
	}
	if got := f.row(t, "loader/job-2"); !got.Closed || got.Level != health.Degraded {
		t.Errorf("row: %+v", got)
	}
	broken.Degraded("attach lxc1", errors.New("no such device"))
	if got := f.row(t, "loader/job-2"); got.Closed {
		t.Error("a scope that reports again is still marked closed")
	}
	module.NewScope("job-2").OK("a new job of the same name works")
	if got := f.row(t, "loader/job-2"); got.Closed || got.Level != health.OK {
		t.Errorf("row: %+v", got)
	}
}

// TestCell_FillsBootstrap starts a hive like the agent's and reads both tables.
func TestCell_FillsBootstrap(t *testing.T) {
	t.Parallel()
	recorder := bootlog.NewRecorder()
	log := slog.New(bootlog.NewHandler(hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)).Handler(), recorder))
	var (
		db       *statedb.DB
		hooks    statedb.Table[health.Hook]
		statuses statedb.Table[health.Status]
	)
	h := hive.New(statedb.Cell, job.Cell, Cell,
		cell.Provide(func() *bootlog.Recorder { return recorder }),
		cell.Module("sleeper", "A module with a slow hook and a job",
			cell.Invoke(func(lc cell.Lifecycle, jobs job.Group, own cell.Health) {
				lc.Append(cell.Hook{OnStart: func(cell.HookContext) error {
					time.Sleep(3 * time.Millisecond)
					own.OK("awake")
					return nil
				}})
				jobs.Add(job.OneShot("dream", func(context.Context, cell.Health) error { return errors.New("nightmare") }))
			})),
		cell.Invoke(func(d *statedb.DB, b statedb.Table[health.Hook], s statedb.Table[health.Status]) {
			db, hooks, statuses = d, b, s
		}),
	)
	start(t, h, log)

	for {
		rows, watch := hooks.AllWatch(db.ReadTxn())
		if row, found := firstOf("sleeper", rows); found {
			if row.Duration < 3*time.Millisecond || row.Order < 1 || row.Start.IsZero() {
				t.Errorf("row of the slow hook: %+v", row)
			}
			break
		}
		wait(t, watch)
	}
	for {
		row, _, watch, found := statuses.GetWatch(db.ReadTxn(), health.ByID("sleeper/job-dream"))
		if found && row.Closed {
			if row.Level != health.Degraded || row.Error != "nightmare" {
				t.Errorf("row of the failed job: %+v", row)
			}
			break
		}
		wait(t, watch)
	}
	if row, _, found := statuses.Get(db.ReadTxn(), health.ByID("sleeper/")); !found || row.Message != "awake" {
		t.Errorf("row of the module: %+v", row)
	}
}

// firstOf returns the first start hook of a module.
func firstOf(module string, rows iter.Seq2[health.Hook, statedb.Revision]) (health.Hook, bool) {
	for row := range rows {
		if row.Module == module {
			return row, true
		}
	}
	return health.Hook{}, false
}

func start(t *testing.T, h *upstream.Hive, log *slog.Logger) {
	t.Helper()
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func wait(t *testing.T, watch <-chan struct{}) {
	t.Helper()
	select {
	case <-watch:
	case <-time.After(time.Minute):
		t.Fatal("the row did not appear")
	}
}
