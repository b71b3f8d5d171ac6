package healthreport

import (
	"errors"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/health"
)

// TestScripts runs the reporters as modules use them. The hive of script tests provides its own health, so the source is reachable only through
// commands.
func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{cell.Module("health", "Health under test", cell.ProvidePrivate(health.NewTable, newSource), cell.Provide(reports),
			cell.Invoke(registerPublisher))}
	})
}

// reports returns the commands "say/ok scope message", "say/degraded scope message error", "say/stopped scope message" and "say/close scope"; a scope
// is "job" of the module bees.comb, or "-" for the module itself.
func reports(source *source) upstream.ScriptCmdsOut {
	reportCmd := func(do func(h cell.Health, args []string)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: "Report"}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			h := source.ForModule(cell.FullModuleID{"bees", "comb"})
			if args[0] != "-" {
				h = h.NewScope(args[0])
			}
			do(h, args[1:])
			return nil, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"say/ok":       reportCmd(func(h cell.Health, args []string) { h.OK(args[0]) }),
		"say/degraded": reportCmd(func(h cell.Health, args []string) { h.Degraded(args[0], errors.New(args[1])) }),
		"say/stopped":  reportCmd(func(h cell.Health, args []string) { h.Stopped(args[0]) }),
		"say/close":    reportCmd(func(h cell.Health, _ []string) { h.Close() }),
	})
}
