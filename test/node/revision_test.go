package node_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// agentBeforeEnv is the environment variable with the path of the agent of another revision.
const agentBeforeEnv = "AGENT_BEFORE"

func agentBefore(t *testing.T) string {
	t.Helper()
	path := os.Getenv(agentBeforeEnv)
	if path == "" {
		t.Skip("needs the agent of another revision: only the soak builds one")
	}
	return path
}

// The downgrade to another revision and the upgrade from it do not interrupt traffic.
func TestPrivilegedRevision_DowngradeAndUpgradeLoseNoPacket(t *testing.T) {
	t.Parallel()
	other := agentBefore(t)
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, load.Full())
	random := testseed.New(t)
	for range times(t, 2, 5) {
		for _, to := range []struct{ name, agent string }{{"the other revision", other}, {"this revision", ""}} {
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			traffic.logf(t, "to %s", to.name)
			if err := node.UpgradeAgent(t.Context(), to.agent); err != nil {
				t.Fatal(err)
			}
		}
	}
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

// They do not interrupt connections through services.
func TestPrivilegedRevision_ServicesLoseNoPacket(t *testing.T) {
	t.Parallel()
	other := agentBefore(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m, use := busyServiceFixture(t, mode.packets, mode.args...)
			for range times(t, 2, 5) {
				for _, agent := range []string{other, ""} {
					if err := m.UpgradeAgent(t.Context(), agent); err != nil {
						t.Fatal(err)
					}
				}
			}
			requireUndisturbed(t, use)
		})
	}
}

// They lose no packet between pods of two nodes through the tunnel.
func TestPrivilegedRevision_TunnelLosesNothing(t *testing.T) {
	t.Parallel()
	other := agentBefore(t)
	tunnelUpAndDown(t, other, func(t *testing.T, n kubeNode, _ bool) { requireReplaced(t, n.Node) })
}

// requireReplaced waits until all hooks run the programs of the current agent.
func requireReplaced(t *testing.T, node *nodekit.Node) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "db", "show", "attachments")
		if err != nil {
			return err
		}
		blocks := 0
		for line := range strings.Lines(text) {
			f := strings.Fields(line) // Kind, Device, Hook, Program, Generation, ProgramID, Endpoint, Status
			if len(f) != 8 || f[0] != "block" && f[0] != "tcx" && f[0] != "cgroup" {
				continue
			}
			if f[5] == "0" || f[7] != "Done" {
				return fmt.Errorf("a hook is not replaced: %s", line)
			}
			if f[0] == "block" {
				blocks++
			}
		}
		if blocks != 2 {
			return fmt.Errorf("want two blocks:\n%s", text)
		}
		return nil
	})
}
