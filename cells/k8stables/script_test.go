package k8stables

import (
	"path/filepath"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/celltest"
	agent "github.com/waggle-net/waggle/pkg/settings"
)

// TestScripts gives each script a state directory of its own; the command "env/manifests" sets $MANIFESTS to the
// default directory in it, which does not exist at first.
func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		state := filepath.Join(t.TempDir(), "state")
		return []cell.Cell{Cell, cell.Provide(
			func() agent.Agent { return agent.Agent{EnableIPv4: true, StateDir: state, NodeName: "one"} },
			func() hive.ScriptCmdsOut {
				return hive.NewScriptCmds(map[string]script.Cmd{"env/manifests": script.Command(
					script.CmdUsage{Summary: "Set $MANIFESTS"},
					func(s *script.State, _ ...string) (script.WaitFunc, error) {
						return nil, s.Setenv("MANIFESTS", filepath.Join(state, "manifests"))
					})})
			},
		)}
	})
}
