// Command tiers runs the tests of the tree and says what they cost.
//
//	go run ./test/tiers [-all] [-list TIER] [-filetimes] TIER...
//
// Tests are divided into tiers by what they need: see tiers.go for the table. They run stage by stage, those of
// one stage at the same time. Each tier runs in a control group of its own, whose CPU time is compared with the tier's budget: see speed.go for
// slow machines.
//
//	main.go      the command line and the order        run.go       one tier: its commands, its group, its verdict
//	tiers.go     the table of tiers                    events.go    what `go test -json` prints
//	packages.go  which package belongs to which tier   report.go    what is printed at the end, and on a failure
//	lists.go     permitted skips, expensive tests      machine.go   CPU time, load, pressure
//	filetimes.go times of a clean clone's files        speed.go     the slowness of the machine
//	kept.go      results of whole tiers that are kept
package main
