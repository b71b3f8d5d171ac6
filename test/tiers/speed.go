package main

import (
	"fmt"
	"os/exec"
	"time"
)

const (
	// budgetStart is the CPU time of a start of a process for which the budgets count as they stand. It was not measured on the machines that
	// the budgets come from: it is chosen so that tests whose cost was known there fit on a slower machine, where a start takes 2.1 ms.
	budgetStart = time.Millisecond
	// maxSlowness bounds what a budget is multiplied by. A start takes 1.5 to 2 times as long on a busy machine, and load is no excuse: the bound is
	// little above the slowest machine at rest.
	maxSlowness = 2.5
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
