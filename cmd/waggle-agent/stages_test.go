package main

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/hive"
)

// stages lists the agent's stop hooks in both roles, except hooks that only wait for jobs, with their maximum duration. Hooks with 0 close descriptors
// without waiting. A job ends with its context.
var stages = map[string]time.Duration{
	"apiserver.(*listener).stop":       1500 * time.Millisecond, // cells/agent/apiserver: TestDrain_IsBounded
	"basedevices.newKernel.func":       0,
	"routereconciler.newKernel.func":   0,
	"deviceobserver.newKernel.func":    0,
	"endpointmanager.registerReplay.f": 0,
	"linkreaper.newKernel.func":        0,
	"loader.(*generation).stop":        0,
	"maps.(*store).stop":               0,
	"metrics.register":                 0,
	"overlay.newKernel.func":           0,
	"monitor.(*server).close":          0,
	"servicehealth.newListeners.func":  0,
	"shell.(*server).stop":             0,
	"statedb.newHiveDB.func":           0,
	"sysctl.newAnnouncer.func":         0,
}

// release is the maximum time in which the leader's job releases its Lease, in the cluster role. cells/cluster/leaderelection:
// TestElection_StopTakesTwoSecondsAtMost.
const release = 2 * time.Second

// TestStop_StagesFitIntoItsTime checks that the sum of the longest stages is less than the time after which the stacks of a hanging stop are written. A new
// stop hook needs an entry in the table.
func TestStop_StagesFitIntoItsTime(t *testing.T) {
	t.Parallel()
	left, names := maps.Clone(stages), slices.Collect(maps.Keys(stages))
	for role, jobs := range map[string]time.Duration{config.RoleNode: 0, config.RoleCluster: release} {
		t.Run(role, func(t *testing.T) {
			hooks := stopHooks(t, role)
			if len(hooks) == 0 {
				t.Fatal("no stop hook was found")
			}
			sum := jobs
			for _, hook := range hooks {
				i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(hook, name) })
				if i < 0 {
					t.Errorf("stop hook %s has no bound: prove one and add it to the table", hook)
					continue
				}
				sum += stages[names[i]]
				delete(left, names[i])
			}
			if most := timesOfStop(stopTimeout).record; sum > most {
				t.Errorf("the stages take up to %v, want %v", sum, most)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("no stop hook is named as these of the table are: %v", left)
	}
}

var hookLine = regexp.MustCompile(`(?m)^  • (\S+) `)

// stopHooks lists the stop hooks of a role without the ones of job groups. All optional parts with stop hooks are enabled.
func stopHooks(t *testing.T, role string) (hooks []string) {
	t.Helper()
	args := []string{"hive", "--role=" + role, "--k8s-api-server=http://127.0.0.1:9"}
	if role == config.RoleNode {
		args = append(args, "--state-dir="+t.TempDir(), "--node-name=bee", "--prometheus-serve-addr=127.0.0.1:0")
	}
	var out bytes.Buffer
	if code := run(args, nil, &out, &out); code != 0 {
		t.Fatalf("exit code %d: %s", code, &out)
	}
	_, text, _ := strings.Cut(out.String(), "Stop hooks:")
	for _, match := range hookLine.FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(match[1], "*job.") {
			hooks = append(hooks, match[1])
		}
	}
	return hooks
}

// TestStop_CleanDuringCallsAndStart runs a hive with stages of the maximum duration. The hive must stop in time and with exit code 0, unless
// a stage never ends.
func TestStop_CleanDuringCallsAndStart(t *testing.T) {
	t.Parallel()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt) // starts the goroutine of package signal outside the bubbles
	signal.Stop(interrupts)
	const longAfter = time.Hour
	calls, hooks := stages["apiserver.(*listener).stop"], timesOfStop(stopTimeout).hooks
	for name, c := range map[string]struct {
		start, asked time.Duration // duration of the start hooks; time of the signal
		stop         time.Duration // duration of the stages
		deaf         bool          // a stage ignores the end of its context
		takes        time.Duration // from the signal to the end
		code         int
		recorded     bool
	}{
		"idle":                               {0, longAfter, 0, false, 0, 0, false},
		"calls under way":                    {0, longAfter, calls, false, calls, 0, false},
		"a leader":                           {0, longAfter, release, false, release, 0, false},
		"while starting":                     {time.Second, 200 * time.Millisecond, calls, false, 800*time.Millisecond + calls, 0, false},
		"before the first start hook":        {time.Second, 0, calls, false, time.Second + calls, 0, false},
		"as the last start hook ends":        {time.Second, time.Second, calls, false, calls, 0, false},
		"while a slow start hook runs":       {2900 * time.Millisecond, 0, calls, false, 2900*time.Millisecond + calls, 0, true},
		"while a start hook does not end":    {time.Minute, 0, calls, false, stopTimeout, 1, true},
		"with a stage that does not end":     {0, longAfter, time.Minute, false, hooks, 1, true},
		"with one that does not see its end": {0, longAfter, 5 * time.Second, true, stopTimeout, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stop := func(ctx cell.HookContext) error {
					end := ctx.Done()
					if c.deaf {
						end = nil
					}
					select {
					case <-time.After(c.stop):
						return nil
					case <-end:
						return ctx.Err()
					}
				}
				h := hive.New(cell.Module("stages", "Stages", cell.Invoke(func(lc cell.Lifecycle) {
					lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { time.Sleep(c.start); return nil }, OnStop: stop})
				})), cell.Provide(func() hive.HealthSource { return nil }))
				log, times := slog.New(slog.DiscardHandler), timesOfStop(stopTimeout)
				done, ended := make(chan struct{}), make(chan int, 1)
				go func() {
					code := 0
					if h.Run(log, upstream.WithStopTimeout(times.hooks)) != nil {
						code = 1
					}
					close(done)
					ended <- code
				}()
				time.Sleep(c.asked)
				h.Shutdown()
				began, recorded := time.Now(), false
				code := boundStop(log, times, done, nil, func() { recorded = true })
				took := time.Since(began)
				if code == 0 {
					code = <-ended
				}
				if took != c.takes || code != c.code || recorded != c.recorded {
					t.Errorf("ended after %v with code %d, stacks were written: %v; want %v, %d and %v", took, code, recorded, c.takes, c.code, c.recorded)
				}
				time.Sleep(2 * time.Minute) // for work that continues after the process would have ended
			})
		})
	}
}
