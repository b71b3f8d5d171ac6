package k8sclient

import (
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, cell.Provide(clientCommand)}
	})
}

// clientCommand returns a command that prints whether other cells get a client.
func clientCommand(client *kubeapi.Client) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("client", script.Command(
		script.CmdUsage{Summary: "say whether there is a client"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			return func(*script.State) (stdout, stderr string, err error) {
				return map[bool]string{true: "off", false: "on"}[client == nil] + "\n", "", nil
			}, nil
		}))
}
