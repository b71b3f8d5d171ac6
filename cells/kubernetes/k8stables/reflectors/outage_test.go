package reflectors

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// inStep is the documented limit: 6 s after the return of the server, the tables have the server's objects.
const inStep = 6 * time.Second

// After an outage of any length and kind, all tables are current within 6 s: no reflector waits for the rest of its own delay.
func TestOutage_AllTablesCurrentWithinSixSeconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outage  time.Duration
		compact bool // the server has lost the versions of the watches, so all is listed again
		frozen  bool // the server's host loses power, so connections stay open
	}{
		"a moment":                    {outage: 100 * time.Millisecond},
		"a minute":                    {outage: time.Minute},
		"ten minutes":                 {outage: 10*time.Minute + 1234*time.Millisecond},
		"ten minutes, and all is new": {outage: 10 * time.Minute, compact: true},
		"ten minutes without power":   {outage: 10 * time.Minute, frozen: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				options := []kubetest.Option{kubetest.InMemory()}
				if c.frozen { // only HTTP/2 detects this without the kernel
					options = append(options, kubetest.WithTLS(kubetest.NewAuthority(t)))
				}
				server := kubetest.New(t, options...)
				server.Put(node("one", "192.0.2.1"), pod("a", "mine", "one"))
				client := server.Client(t)
				runProbes(t, client)
				r := followWith(t, client, Settings{}, false)
				r.synced(t)
				r.becomesSame(t, server)
				if c.frozen {
					server.Freeze()
				} else {
					server.Stop()
				}
				time.Sleep(c.outage)
				server.Stop()
				server.Put(node("one", "192.0.2.7"), node("two", "192.0.2.2"), pod("a", "new", "one"), endpoint("e", 1))
				server.Remove(kubeapi.Pods, "a", "mine")
				if c.compact {
					server.Compact()
				}
				server.Start(t)
				back := time.Now()
				r.becomesSame(t, server)
				if took := time.Since(back); took > inStep {
					t.Errorf("in step after %v, want %v", took, inStep)
				}
			})
		})
	}
}

// runProbes runs the probe of servers in doubt, as the cell k8s-client does, until the test ends.
func runProbes(t *testing.T, client *kubeapi.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = client.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
}
