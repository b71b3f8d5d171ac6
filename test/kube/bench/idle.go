package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// idleShare is the minimum share of the time that the CPUs of an idle machine have no work: etcd and the API server always have some.
	idleShare = 0.8
	// idleWait is the maximum time that awaitIdle waits. A measurement on a busy machine follows with a warning.
	idleWait = time.Minute
)

// awaitIdle waits until the CPUs have been idle for a second. The API server and the controllers work for some seconds after their start, on the CPUs that the
// agent would need.
func awaitIdle(ctx context.Context) error {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return fmt.Errorf("read how busy the machine is: %w", err)
	}
	for began := time.Now(); ; {
		share, err := idleFor(ctx, fs, time.Second)
		switch {
		case err != nil:
			return fmt.Errorf("read how busy the machine is: %w", err)
		case share >= idleShare:
			return nil
		case time.Since(began) > idleWait:
			fmt.Fprintf(os.Stderr, "the CPUs are idle for only %.0f %% of the time: other processes will delay the starts of the agent\n", 100*share)
			return nil
		}
	}
}

// idleFor returns the share of a duration in which the CPUs are idle, 0 to 1.
func idleFor(ctx context.Context, fs procfs.FS, duration time.Duration) (float64, error) {
	before, err := fs.Stat()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(duration):
	}
	after, err := fs.Stat()
	if err != nil {
		return 0, err
	}
	return (after.CPUTotal.Idle - before.CPUTotal.Idle) / (time.Since(began).Seconds() * float64(runtime.NumCPU())), nil
}
