package clusterhealthz

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/identityrounds"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/version"
)

var tables = cell.Provide(leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable,
	health.NewTable, statedb.RWTable[health.Status].ToTable,
	identityrounds.NewTable, statedb.RWTable[identityrounds.Round].ToTable)

func TestScripts(t *testing.T) {
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{tables, cell.Module("probes", "Probes under test", cell.ProvidePrivate(newHandler), cell.Provide(probes))}
	})
}

// probes returns the command "probe path", which prints status and body without the version.
func probes(h handler) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{"probe": script.Command(script.CmdUsage{Summary: "Probe"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", args[0], nil))
				return fmt.Sprintf("%d %s", w.Code, strings.ReplaceAll(w.Body.String(), version.String(), "VERSION")), "", nil
			}, nil
		})})
}

func TestCell_RejectsInvalidAddress(t *testing.T) {
	h, err := hive.Build(celltest.Infrastructure(), tables, Cell)
	if err != nil {
		t.Fatal(err)
	}
	h.Viper().Set("operator-api-serve-addr", "9234")
	if err := hive.Populate(h, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--operator-api-serve-addr=\"9234\"") {
		t.Errorf("an address without a host: %v", err)
	}
}
