package healthz

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/version"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{tables, cell.Module("healthz", "Probes under test", cell.ProvidePrivate(newHandler), cell.Provide(probes))}
	})
}

// probes returns the command "probe path [header=value]", which prints status and body without the agent's version.
func probes(h handler) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{"probe": script.Command(script.CmdUsage{Summary: "Probe"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) {
				r := httptest.NewRequest("GET", args[0], nil)
				for _, header := range args[1:] {
					name, value, _ := strings.Cut(header, "=")
					r.Header.Set(name, value)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return fmt.Sprintf("%d %s", w.Code, strings.ReplaceAll(w.Body.String(), version.String(), "VERSION")), "", nil
			}, nil
		})})
}
