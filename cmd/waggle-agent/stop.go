package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

const (
	// stopTimeoutFlag is hidden, and the manifests rely on its default. Tests set a longer time if other processes use the CPU or the CPU is emulated: then a
	// slow stop succeeds, and only a hanging one fails.
	stopTimeoutFlag = "stop-timeout"
	// stopTimeout is the default. The difference to the documented 5 s is a reserve for a busy machine.
	stopTimeout = 4500 * time.Millisecond
)

// addStopFlag registers the flag in a set of flags.
func addStopFlag(flags *pflag.FlagSet) {
	flags.Duration(stopTimeoutFlag, stopTimeout, "Time from SIGTERM to the end of the process, even if loops still run")
	_ = flags.MarkHidden(stopTimeoutFlag)
}

// stopTimes holds the times of a stop, relative to the signal.
type stopTimes struct {
	record time.Duration // the stacks are written for the next run, so that an operator can find the cause
	hooks  time.Duration // the remaining stop hooks are skipped
	exit   time.Duration // the process ends
}

// timesOfStop derives the times of a stop from its timeout.
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
