package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The clocks that count from boot jump between two runs of the agent, by ten days ahead and back again, as on a machine that was suspended or restored. Traffic
// is not interrupted, nothing expires early, and pods can be attached and detached.
func TestPrivilegedClock_JumpsBetweenRuns(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, gentle())
	script := filepath.Join(node.Dir, "agent-of-another-time")
	const tenDays = 10 * 24 * 60 * 60
	text := fmt.Sprintf("#!/bin/sh\nexec unshare --time --monotonic %d --boottime %d %s/waggle-agent \"$@\"\n", tenDays, tenDays, binDir)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	agents := []string{script, ""}
	if soaks() {
		agents = append(agents, script)
	}
	for _, agent := range agents {
		if err := node.UpgradeAgent(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
		ours, err := os.Readlink("/proc/self/ns/time")
		theirs, otherErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", node.AgentPID()))
		if err := errors.Join(err, otherErr); err != nil || (ours != theirs) != (agent == script) {
			t.Fatalf("the agent's clocks are those of %s, the test's of %s: %v", theirs, ours, err)
		}
		pod := addPod(t, node, "visitor")
		if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56),
			pod.Check(t.Context()), pod.Detach(t.Context())); err != nil {
			t.Error(err)
		}
	}
	traffic.end(t)
	eventuallyLasting(t, node, before)
}
