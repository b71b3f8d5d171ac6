package celltest

import (
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
)

// TestRun_ProvidesModuleDependenciesOfAgent runs a cell that requires the health reporter and the job group of its module.
func TestRun_ProvidesModuleDependenciesOfAgent(t *testing.T) {
	Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{cell.Module("comb", "Comb", cell.Invoke(func(lc cell.Lifecycle, health cell.Health, _ job.Group) {
			lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { health.OK("buzzing"); return nil }})
		}))}
	})
}

// TestTimeoutCmd_DefaultTimeout parses the flag as the script engine does.
func TestTimeoutCmd_DefaultTimeout(t *testing.T) {
	for name, cmd := range map[string]script.Cmd{"db/cmp": statedb.CompareCmd(statedb.New()), "db/initialized": statedb.InitializedCmd(statedb.New())} {
		for _, c := range []struct {
			args []string
			want time.Duration
		}{{nil, tableTimeout}, {[]string{"--timeout=10ms"}, 10 * time.Millisecond}} {
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			timeoutCmd{cmd}.Usage().Flags(flags)
			if err := flags.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			if got, err := flags.GetDuration("timeout"); err != nil || got != c.want {
				t.Errorf("%s %v waits for %v, want %v: %v", name, c.args, got, c.want, err)
			}
		}
	}
}
