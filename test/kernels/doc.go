// Command kernels runs the tests that need a kernel inside other kernels than this machine's: each of Debian's kernels boots
// under qemu with a file system of its own in memory, which holds nothing but its modules, the tests and the programs under
// test.
//
//	go run ./test/kernels [-kernels 6.1,6.12] [-run REGEXP] [-packages bpf,cells/loader] [-accel tcg] [-timeout 20m]
//
// The same program is the machine's first process: it mounts, loads modules, runs one test binary after the other and
// writes what `go test -json` would to the second serial port. The first one is the kernel's console. It needs no network,
// no disk and no privileges outside.
//
//	main.go       the steps and their order          suites.go     which tests, and the programs they need
//	kernel.go     Debian's packages                  initramfs.go  the machine's file system
//	machine.go    qemu                               report.go     what the tests say, told readably
//	guest.go      the first process inside
package main
