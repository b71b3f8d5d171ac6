package pprof

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/celltest"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, cell.Provide(fetchCommand)}
	})
}

// fetchCommand returns the command "fetch path", which prints the body that the server sends.
func fetchCommand(reports *cell.SimpleHealth) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{"fetch": script.Command(script.CmdUsage{Summary: "Fetch"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			output := status(reports)
			if output == "" { // the server has not started, or never will
				return func(*script.State) (string, string, error) { return "nothing is served\n", "", nil }, nil
			}
			address, serving := strings.CutPrefix(output, "serving profiles on ")
			if !serving {
				return nil, errors.New(output)
			}
			response, err := http.Get("http://" + address + args[0])
			if err != nil {
				return nil, err
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				return nil, err
			}
			return func(*script.State) (string, string, error) { return string(text), "", nil }, nil
		})})
}
