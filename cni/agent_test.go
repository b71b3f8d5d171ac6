package cni

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/agentclient"
)

// An ADD without an agent fails after the documented 5 s, so that kubelet's next attempt can reach the next agent.
func TestWaitReady_AbsentAgentIsAnErrorAfterFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := waitReady(t.Context(), agentclient.New(filepath.Join(t.TempDir(), "none.sock")))
		if d := time.Since(began); err == nil || err.Code != 11 || d > 5*time.Second || d < 4900*time.Millisecond {
			t.Errorf("%v after %v, want code 11 after 5s", err, d)
		}
	})
}
