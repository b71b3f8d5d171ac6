package node_test

import (
	"os"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// agentBeforeEnv names the agent of another revision, as a program.
const agentBeforeEnv = "AGENT_BEFORE"

func agentBefore(t *testing.T) string {
	t.Helper()
	path := os.Getenv(agentBeforeEnv)
	if path == "" {
		t.Skip("needs the agent of another revision: only the soak builds one")
	}
	return path
}

// The downgrade to another revision and the upgrade from it disturb nobody.
func TestPrivilegedRevision_DowngradeAndUpgradeDisturbNobody(t *testing.T) {
	t.Parallel()
	other := agentBefore(t)
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, load.Full())
	random := testseed.New(t)
	for range times(t, 2, 5) {
		for _, to := range []struct{ name, agent string }{{"the other revision", other}, {"this revision", ""}} {
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			traffic.say(t, "to %s", to.name)
			if err := node.UpgradeAgent(t.Context(), to.agent); err != nil {
				t.Fatal(err)
			}
		}
	}
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

// Nor are connections through services disturbed.
func TestPrivilegedRevision_ServicesLoseNoPacket(t *testing.T) {
	t.Parallel()
	other := agentBefore(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m, use := busyMarket(t, mode.packets, mode.args...)
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
