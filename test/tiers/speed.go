package main

import (
	"fmt"
	"os/exec"
	"time"
)

const (
	// budgetStart is the CPU time of one process start on the machine on which the budgets were measured. There, the whole run took 1,842 CPU-seconds with
	// empty caches.
	budgetStart = 450 * time.Microsecond
	// maxSlowness is the maximum factor of a budget. On the slowest known machine, a process start took 2.5 ms; load does not increase the factor.
	maxSlowness = 6
	// starts is the number of process starts in one measurement. They take half a second on a slow machine.
	starts = 100
)

// slowness returns the ratio of this machine's process start time to [budgetStart], from 1 to [maxSlowness]. It uses the fastest of many starts, which other
// processes influence least. Virtual machines with equal computing speed differ in the cost of the kernel's work on memory and processes: on some, the host
// handles each page fault. The measurement uses no code of this project, so changes of this project do not affect it.
func slowness() (float64, error) {
	fastest := time.Hour
	for range starts {
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("start a process to measure the speed of this machine: %w", err)
		}
		fastest = min(fastest, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	return slownessOf(fastest), nil
}

// slownessOf returns the slowness of a machine on which a process start takes the given CPU time.
func slownessOf(start time.Duration) float64 {
	return max(1, min(float64(start)/float64(budgetStart), maxSlowness))
}
