package main

import (
	"fmt"
	"os/exec"
	"time"
)

const (
	// budgetStart is the CPU time of a start of a process on the machine that the budgets were measured on, where the whole run took 1,842 CPU-seconds
	// with empty caches.
	budgetStart = 450 * time.Microsecond
	// maxSlowness bounds what a budget is multiplied by. On the slowest machine seen so far, a start took 2.5 ms; load is no excuse.
	maxSlowness = 6
	// starts is how many processes one measurement starts. They take half a second on a slow machine.
	starts = 100
)

// slowness returns how many times slower than [budgetStart] this machine starts a process, from 1 to [maxSlowness]. It takes the fastest of
// many starts, on which other processes have the least influence. Virtual machines that compute equally fast differ in what the kernel's work on
// memory and processes costs: in some, the host handles each page fault. Nothing of this project is measured, so a change to it does
// not change the result.
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

// slownessOf returns the slowness of a machine where the start of a process takes the given CPU time.
func slownessOf(start time.Duration) float64 {
	return max(1, min(float64(start)/float64(budgetStart), maxSlowness))
}
