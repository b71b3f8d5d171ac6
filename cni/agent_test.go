package cni

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/api/v1/models"
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

// STATUS waits for an agent that is replaced, because kubelet reports a node as not ready after one failure. The agent runs outside the bubble, where it
// does not hold up the time of the plugin.
func TestStatus_WaitsForTheNextAgent(t *testing.T) {
	t.Parallel()
	starting := models.AgentState{State: models.AgentStateStateStarting, WaitingFor: []string{"the pod CIDR"}}
	for name, c := range map[string]struct {
		absent, starts time.Duration // times until the agent answers, and from then on until it is ready; negative: for ever
		noState        bool          // as after a boot
		takes          time.Duration
		code           uint // 0: success
		words          string
	}{
		"ready":               {code: 0},
		"replaced":            {absent: 10 * time.Second, takes: 10 * time.Second},
		"replaced and starts": {absent: 6 * time.Second, starts: 6 * time.Second, takes: 12 * time.Second},
		"absent":              {absent: -1, takes: 15 * time.Second, code: 50, words: "waggle.sock"},
		"starting":            {starts: -1, takes: 15 * time.Second, code: 50, words: "starting: it waits for the pod CIDR"},
		"no agent since boot": {absent: -1, noState: true, code: 50, words: "waggle.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := &netConf{StateDir: t.TempDir()}
			agent := newFakeAgent(t, conf.StateDir)
			conf.SocketPath = agent.socket()
			if c.absent != 0 {
				agent.stop()
			}
			if c.starts != 0 {
				agent.state = starting
			}
			if c.noState {
				conf.StateDir = filepath.Join(conf.StateDir, "missing")
			}
			events, handled := make(chan func()), make(chan struct{})
			defer close(events)
			go func() {
				for event := range events {
					event()
					handled <- struct{}{}
				}
			}()
			outside := func(after time.Duration, event func()) {
				time.AfterFunc(after, func() {
					events <- event
					<-handled
				})
			}
			start := func() { agent.start(t) }
			synctest.Test(t, func(t *testing.T) {
				if c.absent > 0 {
					outside(c.absent, start)
				}
				if c.starts > 0 {
					outside(c.absent+c.starts, func() {
						agent.set(func() { agent.state = models.AgentState{State: models.AgentStateStateReady} })
					})
				}
				began := time.Now()
				err := new(plugin).status(t.Context(), conf, nil)
				took := time.Since(began)
				if took > c.takes+100*time.Millisecond || took < c.takes-100*time.Millisecond {
					t.Errorf("STATUS took %v, want %v", took, c.takes)
				}
				var failed *types.Error
				switch {
				case c.code == 0 && err != nil:
					t.Errorf("STATUS: %v", err)
				case c.code != 0 && (!errors.As(err, &failed) || failed.Code != c.code || !strings.Contains(failed.Msg, c.words)):
					t.Errorf("STATUS: %v, want code %d with %q", err, c.code, c.words)
				}
			})
		})
	}
}
