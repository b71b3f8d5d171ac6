// Package liveness finds loops, rows and write transactions that hang, so that the agent can be restarted.
//
// It provides the monitor ([watchdog.Monitor]) for the job groups of all modules, steps it each second, and writes stalls to the log, to the module's health
// and, with the stacks of all goroutines, to stall.txt in the state directory. The health probes read the verdict directly from the monitor, so that no stall
// can delay it. Tables in: none by their types; the monitor reads the tables of reconcilers. Tables out: none. The cell owns the files stall.txt and
// stall-before.txt.
//
// After a restart it logs the record in stall.txt of the previous run, and keeps it as stall-before.txt.
package liveness
