package shell

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/shellwire"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		dir := t.TempDir()
		return []cell.Cell{Cell, cell.Provide(
			sources.NewTable, statedb.RWTable[sources.Source].ToTable,
			func() agentconfig.Agent { return agentconfig.Agent{StateDir: dir} },
			func() shellwire.HivePrinter {
				return func(w io.Writer) error { _, err := io.WriteString(w, "the cells\n"); return err }
			},
			func() upstream.ScriptCmdsOut { return operator(filepath.Join(dir, shellwire.SocketName)) },
		), cell.Invoke(func(statedb.Table[sources.Source]) {})} // no other cell requests the table
	})
}

// operator returns the script command "ask command...", which runs a command through the socket. The shell must not offer it.
func operator(socket string) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{"ask": script.Command(script.CmdUsage{Summary: "Ask the shell"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				var out strings.Builder
				err := shellwire.Run(ctx, socket, shellwire.Quote(args), 0, func(line string) { out.WriteString(line + "\n") })
				if err != nil {
					return out.String(), err.Error() + "\n", errors.New("refused")
				}
				return out.String(), "", nil
			}, nil
		})})
}
