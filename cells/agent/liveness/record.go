package liveness

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// writeDown logs and records the beginning of a stall, once per stall.
func (j *stepper) writeDown(ctx context.Context, health cell.Health) error {
	health.OK("nothing hangs")
	for stalled := false; ; {
		watchdog.Idle(ctx)
		var stalls []watchdog.Stall
		select {
		case <-ctx.Done():
			return nil
		case stalls = <-j.found:
		}
		watchdog.Busy(ctx)
		switch {
		case len(stalls) > 0 && !stalled:
			j.record(stalls)
			health.Degraded("the agent must be restarted", errors.New(stalls[0].What))
		case len(stalls) == 0 && stalled:
			j.Log.Info("Nothing hangs any longer")
			health.OK("nothing hangs")
		}
		stalled = len(stalls) > 0
	}
}

// record writes to the log first, because a hanging state directory may be the cause.
func (j *stepper) record(stalls []watchdog.Stall) {
	var lines []string
	for _, w := range stalls {
		lines = append(lines, w.What+", since "+w.Since.UTC().Format(time.RFC3339))
		j.Log.Error("The agent must be restarted: something hangs", "what", w.What, "since", w.Since)
	}
	if j.Settings.StateDir == "" {
		j.Log.Error("Stacks of all goroutines", "stacks", string(watchdog.Stacks()))
		return
	}
	path, err := watchdog.Record(j.Settings.StateDir, lines...)
	if err != nil {
		j.Log.Error("Stacks of all goroutines", "stacks", string(watchdog.Stacks()), "error", err)
		return
	}
	j.Log.Error("Stacks of all goroutines were written", "file", path)
}

// logPreviousStall logs the record of a previous run once.
func (j *stepper) logPreviousStall() {
	if j.Settings.StateDir == "" {
		return
	}
	head, path, err := watchdog.TakeRecord(j.Settings.StateDir)
	switch {
	case err != nil:
		j.Log.Warn("The record of a stall of the previous run cannot be read", "error", err)
	case head != "":
		j.Log.Warn("The previous run recorded a stall, which may be why it ended", "what", head, "stacks", path)
	}
}
