package main

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"time"
)

const (
	// budgetStart is the mean CPU time of a process start on the machine on which the budgets were measured. There, the whole run took 1,842 CPU-seconds
	// with empty caches.
	budgetStart = 600 * time.Microsecond
	// maxSlowness is the maximum factor of a budget. On the slowest known machine, a process start took 2.5 ms.
	maxSlowness = 6
	// batch is the number of process starts in one sample. They take less than a tenth of a second on a slow machine.
	batch = 20
	// samplePeriod is the time from one sample to the next. Samples use less than one percent of a CPU.
	samplePeriod = 5 * time.Second
)

// speedometer measures the CPU time of process starts while a tier runs. Virtual machines with equal computing speed differ in the cost of the kernel's work
// on memory and processes: on some, the host handles each page fault and each wake-up of an idle CPU. This cost changes by half within minutes, so only
// samples from the time of the tier itself say what its CPU time would be on another machine. The samples use no code of this project, so changes of this
// project do not affect them.
type speedometer struct {
	cancel context.CancelFunc
	work   sync.WaitGroup

	// used and starts belong to the sampling goroutine until work is done.
	used   time.Duration
	starts int
	err    error
}

// startSpeedometer samples at once, and then each period until stop.
func startSpeedometer(ctx context.Context, period time.Duration) *speedometer {
	ctx, cancel := context.WithCancel(ctx)
	s := &speedometer{cancel: cancel}
	s.work.Go(func() {
		ticks := time.NewTicker(period)
		defer ticks.Stop()
		for {
			if s.err = s.sample(); s.err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
		}
	})
	return s
}

// sample adds one batch of process starts.
func (s *speedometer) sample() error {
	for range batch {
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("start a process to measure the speed of this machine: %w", err)
		}
		s.used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		s.starts++
	}
	return nil
}

// stop ends the sampling and returns the ratio of the mean start time to [budgetStart], from 1 to [maxSlowness].
func (s *speedometer) stop() (float64, error) {
	s.cancel()
	s.work.Wait()
	if s.err != nil {
		return 1, s.err
	}
	return slownessOf(s.used / time.Duration(s.starts)), nil
}

// slownessOf returns the slowness of a machine on which a process start takes the given CPU time.
func slownessOf(start time.Duration) float64 {
	return max(1, min(float64(start)/float64(budgetStart), maxSlowness))
}
