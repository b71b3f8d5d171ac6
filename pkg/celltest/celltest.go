// Package celltest runs script tests of cells. It provides a hive with a database, jobs and in-memory health, and a script
// engine with the commands of statedb and of the cells under test. It needs no privileges.
package celltest

import (
	"context"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/hive/script/scripttest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// timeout limits the time from the start of the last script to the end of all scripts. It suffices for a large package on a busy machine.
	timeout = 2 * time.Minute
	// tableTimeout is the default timeout of table commands that wait for a content. It only delays a failure.
	tableTimeout = 20 * time.Second
)

// health returns a scope of one in-memory health for each module.
type health struct{ root *cell.SimpleHealth }

func (h health) ForModule(id cell.FullModuleID) cell.Health { return h.root.NewScope(id.String()) }

// Infrastructure returns the cells that every cell needs: database, jobs, health, and the script command "health".
func Infrastructure() cell.Cell {
	return cell.Group(
		statedb.Cell,
		job.Cell,
		cell.Provide(
			watchdog.NewMonitor, // loops report to it; [RunVirtual] checks the loops after a script
			cell.NewSimpleHealth,
			func(root *cell.SimpleHealth) hive.HealthSource { return health{root} }, // hive gives modules the interface
			func(h *cell.SimpleHealth) upstream.ScriptCmdOut {
				return upstream.NewScriptCmd("health", cell.SimpleHealthCmd(h))
			},
		),
	)
}

// Run runs each script that matches pattern (for instance "testdata/*.txtar") against its own hive, in real time. It is for
// cells that use sockets, watch files or make blocking system calls; all other cells use [RunVirtual]. The cells come from a
// function because each script needs new cells. Arguments on the script's "#!" line are flags of the hive; $WORK in them is
// the script's directory.
func Run(t *testing.T, pattern string, cells func(t testing.TB) []cell.Cell) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	// Scripts wait for other tests before they begin, so the time counts from the start of a script.
	end := time.AfterFunc(math.MaxInt64, func() {
		t.Errorf("a script still runs %v after the start of the last one: its condition does not become true", timeout)
		cancel()
	})
	t.Cleanup(func() { end.Stop() })
	setup := func(t testing.TB, args []string) *script.Engine {
		end.Reset(timeout)
		e, _ := engine(t, expand(t, args), cells)
		return e
	}
	scripttest.Test(t, ctx, setup, []string{"PATH=" + t.TempDir()}, pattern)
}

// loopChecker checks the loops of a hive as the watchdog of an agent does.
type loopChecker struct {
	monitor *watchdog.Monitor
	db      *statedb.DB
}

// engine returns an engine for one script with its own hive, which stops when the test ends. args are flags of the hive.
func engine(t testing.TB, args []string, cells func(t testing.TB) []cell.Cell) (*script.Engine, *loopChecker) {
	t.Helper()
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	var loops loopChecker
	h := hive.New(append([]cell.Cell{Infrastructure(), cell.Invoke(func(m *watchdog.Monitor, db *statedb.DB) { loops = loopChecker{m, db} })}, cells(t)...)...)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatalf("parse the script's flags: %v", err)
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Errorf("stop the hive: %v", err)
		}
	})
	cmds, err := h.ScriptCommands(log)
	if err != nil {
		t.Fatalf("build the hive: %v", err)
	}
	for name, cmd := range script.DefaultCmds() {
		if _, taken := cmds[name]; !taken {
			cmds[name] = cmd
		}
	}
	for _, name := range []string{"db/cmp", "db/initialized"} {
		cmds[name] = timeoutCmd{cmds[name]}
	}
	return &script.Engine{Cmds: cmds, RetryInterval: 10 * time.Millisecond, MaxRetryInterval: time.Second}, &loops
}

// timeoutCmd is a command that waits for tableTimeout.
type timeoutCmd struct{ script.Cmd }

// Usage implements [script.Cmd].
func (p timeoutCmd) Usage() *script.CmdUsage {
	usage := *p.Cmd.Usage()
	flags := usage.Flags
	usage.Flags = func(fs *pflag.FlagSet) {
		flags(fs)
		if err := fs.Set("timeout", tableTimeout.String()); err != nil {
			panic(err) // the command no longer has the flag
		}
	}
	return &usage
}

// expand replaces $WORK in args, because the engine replaces it only in commands. A script's directory is the first temporary
// directory of its test, so it has the same parent as the next one.
func expand(t testing.TB, args []string) []string {
	var out []string
	for _, arg := range args {
		if strings.Contains(arg, "$WORK") {
			arg = strings.ReplaceAll(arg, "$WORK", filepath.Join(filepath.Dir(t.TempDir()), "001"))
		}
		out = append(out, arg)
	}
	return out
}
