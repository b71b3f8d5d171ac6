package k8stables

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// TestScripts gives each script its own state directory. The command "env/manifests" sets $MANIFESTS to the default directory in it, which does not
// exist at first. Kubernetes is off.
func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/[a-j]*.txtar", func(t testing.TB) []cell.Cell {
		state := filepath.Join(t.TempDir(), "state")
		return []cell.Cell{Cell, cell.Provide(
			func() *kubeapi.Client { return nil },
			func() agentconfig.Agent { return agentconfig.Agent{EnableIPv4: true, StateDir: state, NodeName: "one"} },
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

// TestScripts_WithKubernetes gives each script an API server.
func TestScripts_WithKubernetes(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/kube-*.txtar", func(t testing.TB) []cell.Cell { return withServer(t, kubetest.New(t)) })
}

// TestScripts_Slices runs in virtual time: agents wait for up to a minute before they list all CiliumEndpoints.
func TestScripts_Slices(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/slices/*.txtar", func(t testing.TB) []cell.Cell { return withServer(t, kubetest.New(t, kubetest.InMemory())) })
}

func withServer(t testing.TB, server *kubetest.Server) []cell.Cell {
	state := filepath.Join(t.TempDir(), "state")
	client := server.Client(t)
	return []cell.Cell{Cell, cell.Provide(
		func() *kubeapi.Client { return client },
		func() agentconfig.Agent {
			return agentconfig.Agent{EnableIPv4: true, StateDir: state, BPFRoot: state, NodeName: "one"}
		},
		func() hive.ScriptCmdsOut { return server.Commands(t) },
	)}
}

func TestNewSettings_Rejects(t *testing.T) {
	t.Parallel()
	client := kubetest.New(t).Client(t)
	for name, c := range map[string]struct {
		change func(*Config)
		client *kubeapi.Client
		want   string
	}{
		"two sources":       {func(c *Config) { c.Dir = "/manifests" }, client, "--manifests-dir=\"/manifests\" and --k8s-api-server"},
		"relative lib dir":  {func(c *Config) { c.LibDir = "lib" }, client, `--lib-dir="lib": must be an absolute path`},
		"negative time-out": {func(c *Config) { c.SyncTimeout = -1 }, nil, "--k8s-sync-timeout=-1ns"},
		"busy copies":       {func(c *Config) { c.SnapshotWait = 1 }, nil, "--k8s-snapshot-interval=1ns"},
	} {
		config := DefaultConfig
		c.change(&config)
		if _, err := newSettings(config, agentconfig.Agent{StateDir: "/run/waggle"}, c.client); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
