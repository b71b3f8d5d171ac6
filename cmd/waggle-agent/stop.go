package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

const (
	// stopTimeoutFlag is hidden. The manifests rely on its default. Tests set it to a longer time where other processes use the
	// CPU or the CPU is emulated: a stop that is slow then succeeds, and only one that hangs fails.
	stopTimeoutFlag = "stop-timeout"
	// stopTimeout is the default. It leaves some of the 5 s that are promised to a machine that is busy.
	stopTimeout = 4500 * time.Millisecond
)

// addStopFlag registers the flag in a set of flags.
func addStopFlag(flags *pflag.FlagSet) {
	flags.Duration(stopTimeoutFlag, stopTimeout, "Time from SIGTERM to the end of the process, whatever still runs then")
	_ = flags.MarkHidden(stopTimeoutFlag)
}

// stopTimes are moments of a stop, counted from the signal.
type stopTimes struct {
	record time.Duration // the stacks are written for the next run: an operator will want to know what takes so long
	hooks  time.Duration // the stop hooks that are left are skipped
	exit   time.Duration // the process ends
}

// timesOfStop divides the time that a stop may take.
func timesOfStop(timeout time.Duration) stopTimes {
	return stopTimes{record: timeout - timeout/3, hooks: timeout - timeout/9, exit: timeout}
}

func (a *agent) stopTimes() (stopTimes, error) {
	timeout, err := a.flags.GetDuration(stopTimeoutFlag)
	if err == nil && timeout <= 0 {
		err = fmt.Errorf("--%s=%v: must be positive", stopTimeoutFlag, timeout)
	}
	return timesOfStop(timeout), err
}
