package main

import (
	"fmt"
	"os/exec"
	"time"
)

const (
	// budgetStart is the CPU time that a process of a small program takes to start and end on the machine that the budgets are for.
	budgetStart = time.Millisecond
	// maxSlowness bounds how much a slow machine adds to a budget, so that the budget still means something there.
	maxSlowness = 4
	// starts is how many processes one measurement starts. They take half a second on a slow machine.
	starts = 100
)

// slowness returns how many times slower than the machine of the budgets this one is now, from 1 to [maxSlowness], by the CPU time
// that a process takes to start and end. Tests spend most of their CPU time in the kernel, on memory, processes and namespaces, and
// there virtual machines with equal processors differ most: in some, each page fault is handled by the host. Nothing of
// this project is measured, so a change to it does not change the result.
func slowness() (float64, error) {
	var used time.Duration
	for range starts {
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("start a process to measure the speed of this machine: %w", err)
		}
		used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return slownessOf(used / starts), nil
}

// slownessOf returns the slowness of a machine where the start of a process takes the given CPU time.
func slownessOf(start time.Duration) float64 {
	return max(1, min(float64(start)/float64(budgetStart), maxSlowness))
}
