// Command kernels runs privileged tests on kernels other than this machine's: each of Debian's kernels boots under qemu with a file system in memory, which
// contains only modules, tests and the programs under test.
//
//	go run ./test/kernels [-kernels 6.1,6.12] [-packages bpf/tests,cells/datapath/loader] [-run REGEXP] [-all] [-accel tcg] [-timeout 40m]
//	go run ./test/kernels -bench [-kernels 6.1] [-o json]
//
// A suite is the part of one package's tests that runs on a kernel. The tables of suites, of omissions and of allowed skips are in table.go; a test checks
// that each privileged test is in one of the first two. A suite that passed with the same inputs within 14 days is not run again, and a kernel whose suites
// are all unchanged does not boot.
//
// The first process of a machine (package guest) mounts file systems, loads modules, runs one test binary after the other and writes events in the format of
// `go test -json` to the second serial port. The first serial port is the kernel's console. A machine needs no network, no disk and no privileges outside.
//
//	table.go      which tests run where, and why the others do not
//	suites.go     the rows of the tables, and the selection by the command line
//	main.go       the steps and their order            kernelrun.go  one kernel's suites: unchanged or left to run
//	programs.go   identities and links of programs     stamps.go     suites that passed, by the hash of their inputs
//	kernel.go     Debian's packages and modules        initramfs.go  the machine's file system
//	machine.go    qemu                                 report.go     results, as text and for CI
//	bench.go      instruction counts of benchmarks     plan/         the protocol between the command and the first process
//	guest/        the first process inside             modules/      tests of modules that only some suites need
package main
