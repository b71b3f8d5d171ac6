package hive

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
)

// slowHookOf is a stop hook with a name that the test finds in the log.
type slowHookOf struct {
	stop func(context.Context) error
}

func (slowHookOf) Start(cell.HookContext) error      { return nil }
func (h slowHookOf) Stop(ctx cell.HookContext) error { return h.stop(ctx) }
func (slowHookOf) HookInfo() string                  { return "the slow one" }

// A hive stops within 4 s. A hook that hangs until its context ends is then abandoned; the log names it, and later hooks are skipped.
func TestRun_StalledHook_IsAbandonedAndNamed(t *testing.T) {
	t.Parallel()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt) // starts the goroutine of package signal outside the bubbles
	signal.Stop(interrupts)
	for name, c := range map[string]struct {
		stop   func(context.Context) error
		takes  time.Duration
		behind bool // later hooks run
		want   error
	}{
		"in time": {func(context.Context) error { time.Sleep(3900 * time.Millisecond); return nil }, 3900 * time.Millisecond, true, nil},
		"hangs":   {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 4 * time.Second, false, context.DeadlineExceeded},
		"fails":   {func(context.Context) error { return os.ErrInvalid }, 0, true, os.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var logs bytes.Buffer
				behind := false
				h := New(cell.Module("slow", "Slow", cell.Invoke(func(lc cell.Lifecycle) {
					lc.Append(cell.Hook{OnStop: func(cell.HookContext) error { behind = true; return nil }})
					lc.Append(slowHookOf{c.stop})
				})), cell.Provide(func() HealthSource { return nil }))
				ended := make(chan error, 1)
				go func() { ended <- h.Run(slog.New(slog.NewTextHandler(&logs, nil))) }()
				time.Sleep(time.Minute)
				began := time.Now()
				h.Shutdown()
				err := <-ended
				if took := time.Since(began); took != c.takes || !errors.Is(err, c.want) || behind != c.behind {
					t.Errorf("stopped after %v with %v, hooks behind ran: %v; want %v with %v", took, err, behind, c.takes, c.want)
				}
				if named := strings.Contains(logs.String(), "Stop hook failed") && strings.Contains(logs.String(), "the slow one"); named != (c.want != nil) {
					t.Errorf("the log names the hook: %v\n%s", named, logs.String())
				}
			})
		})
	}
}
