// Command tiers runs the tests of the tree and reports their cost.
//
//	go run ./test/tiers [-all] [-list TIER] [-filetimes] TIER...
//
// Tests are divided into tiers by their requirements: see the table in tiers.go. Tiers run stage by stage, the tiers of one stage concurrently. Each tier
// runs in its own control group, whose CPU time is compared with the tier's budget: see speed.go for slow machines.
//
//	main.go      the command line and the order        run.go       one tier: its commands, its group, its verdict
//	tiers.go     the table of tiers                    events.go    the output of `go test -json`
//	packages.go  the packages of each tier             report.go    the output at the end, and after a failure
//	lists.go     permitted skips, expensive tests      machine.go   CPU time, load, pressure
//	filetimes.go times of a clean clone's files        speed.go     the slowness of the machine
//	passed.go    stored results of whole tiers
package main
