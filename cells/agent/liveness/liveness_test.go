package liveness

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dance is a loop that is busy from the second "hang" to "thaw".
type dance struct{ hang, thaw chan struct{} }

func (d dance) run(ctx context.Context, _ cell.Health) error {
	for {
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-d.hang:
		}
		watchdog.Busy(ctx)
		<-d.hang // reports that the loop is busy
		<-d.thaw
	}
}

// bees is a module with the loop.
var bees = cell.Module("bees", "Bees", cell.Provide(func() dance { return dance{make(chan struct{}), make(chan struct{})} }),
	cell.Invoke(func(jobs job.Group, d dance) { watchdog.Add(jobs, "dance", d.run) }))

// TestScripts steps the monitor through commands; in the agent the job "evaluate" steps it.
func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{bees, cell.Provide(commands, steps)}
	})
}

func steps(m *watchdog.Monitor, db *statedb.DB, d dance) upstream.ScriptCmdsOut {
	do := func(f func(args []string) error) script.Cmd {
		return script.Command(script.CmdUsage{Summary: "Test"}, func(_ *script.State, args ...string) (script.WaitFunc, error) { return nil, f(args) })
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"hang": do(func([]string) error { d.hang <- struct{}{}; d.hang <- struct{}{}; return nil }),
		"thaw": do(func([]string) error { d.thaw <- struct{}{}; return nil }),
		"pass": do(func(args []string) error {
			length, err := time.ParseDuration(args[0])
			for range length / time.Second {
				m.Step(time.Second, db.ReadTxn())
			}
			return err
		}),
	})
}

// TestCell_Stall_IsReportedByNextRun runs the cell in fake time. A loop hangs, the log and the file have the stall once, and only the next
// run logs it again, once.
func TestCell_Stall_IsReportedByNextRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var d dance
		h := start(t, dir, &log, &d)
		d.hang <- struct{}{}
		d.hang <- struct{}{}
		time.Sleep(2 * time.Minute)
		d.thaw <- struct{}{}
		time.Sleep(2 * watchdog.Interval)
		stop(t, h)
		if n := strings.Count(log.String(), "something hangs"); n != 1 || !strings.Contains(log.String(), "Nothing hangs any longer") {
			t.Errorf("%d times in the log:\n%s", n, &log)
		}
	})
	content, err := os.ReadFile(filepath.Join(dir, "stall.txt"))
	if err != nil || !strings.Contains(string(content), "\nloop bees/dance hangs") || !strings.Contains(string(content), "liveness.dance.run(") {
		t.Errorf("%v:\n%.1000s", err, content)
	}
	for run, want := range []int{1, 0} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			var d dance
			stop(t, start(t, dir, &log, &d))
			if n := strings.Count(log.String(), "loop bees/dance hangs"); n != want {
				t.Errorf("run %d after it reports it %d times:\n%s", run, n, &log)
			}
		})
	}
}

// TestCell_RecordOfFormerName_IsReported: the previous run was a build that wrote wedge.txt.
func TestCell_RecordOfFormerName_IsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "wedge.txt"), []byte("version\nloop bees/dance hangs\n\nstacks"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var d dance
		stop(t, start(t, dir, &log, &d))
		if !strings.Contains(log.String(), "loop bees/dance hangs") {
			t.Errorf("not reported:\n%s", &log)
		}
	})
	if _, err := os.Stat(filepath.Join(dir, "stall-before.txt")); err != nil {
		t.Error(err)
	}
}

func start(t *testing.T, dir string, log *strings.Builder, d *dance) *upstream.Hive {
	t.Helper()
	h := hive.New(statedb.Cell, job.Cell, Cell, Transactions, bees,
		cell.Provide(cell.NewSimpleHealth, func(h *cell.SimpleHealth) hive.HealthSource { return source{h} },
			func() agentconfig.Agent { return agentconfig.Agent{StateDir: dir} }),
		cell.Invoke(func(got dance) { *d = got }))
	if err := h.Start(slog.New(slog.NewTextHandler(log, nil)), t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

func stop(t *testing.T, h *upstream.Hive) {
	t.Helper()
	if err := h.Stop(slog.New(slog.DiscardHandler), context.Background()); err != nil {
		t.Error(err)
	}
}

type source struct{ root *cell.SimpleHealth }

func (s source) ForModule(id cell.FullModuleID) cell.Health { return s.root.NewScope(id.String()) }
