// Package liveness finds loops, rows and write transactions that hang, so that the agent can be restarted.
//
// It provides the monitor ([heartbeat.Monitor]) that the job groups of all modules report to, lets it judge each second, and
// writes what it finds to the log, to the module's health and, with the stacks of all goroutines, to wedge.txt in the state
// directory. The probes of health read the verdict from the monitor; nothing of this cell stands between them, so what hangs
// cannot keep the news back. It reads no table by itself and owns the two files wedge.txt and wedge-before.txt.
//
// After a restart it says in the log what the run before has left in wedge.txt, and keeps that as wedge-before.txt.
package liveness
