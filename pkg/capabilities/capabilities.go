// Package capabilities drops capabilities that a process no longer needs. Capabilities belong to threads; this package
// changes all threads of the process, and threads that the runtime starts later inherit the change.
package capabilities

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Set holds one bit for each capability.
type Set uint64

// Agent is the set that the running agent needs, for links, routes, sysctls of the network, maps and programs.
const Agent Set = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_PERFMON | 1<<unix.CAP_BPF

// Probes is the set that ICMP probes of other nodes need.
const Probes Set = 1 << unix.CAP_NET_RAW

// Namespaces is the set that is needed to enter the network namespaces of other processes.
const Namespaces Set = 1 << unix.CAP_SYS_ADMIN

// String lists the capabilities of [Agent], [Probes] and [Namespaces] by name and others by number; "none" for an empty set.
func (s Set) String() string {
	var out []string
	for ; s != 0; s &= s - 1 {
		n := bits.TrailingZeros64(uint64(s))
		name, known := map[int]string{unix.CAP_NET_ADMIN: "NET_ADMIN", unix.CAP_NET_RAW: "NET_RAW", unix.CAP_PERFMON: "PERFMON", unix.CAP_BPF: "BPF",
			unix.CAP_SYS_ADMIN: "SYS_ADMIN"}[n]
		if !known {
			name = strconv.Itoa(n)
		}
		out = append(out, name)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ",")
}

// Drop removes every capability outside keep from all threads, also from the set that a program started later could gain.
// It adds no capability. It works only in programs without cgo, which all programs of this project are.
func Drop(keep Set) error {
	have, err := current("CapEff")
	if err != nil {
		return err
	}
	bounded := Bound(keep) // a process that must not shrink the bounding set can still drop its own capabilities
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	left := have & keep
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(left), Permitted: uint32(left)},
		{Effective: uint32(left >> 32), Permitted: uint32(left >> 32)},
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errors.Join(bounded, fmt.Errorf("drop capabilities other than %s: %w", keep, errno))
	}
	return bounded
}

// Bound removes capabilities outside keep from the bounding set, which needs CAP_SETPCAP unless there are none. The current
// capabilities of the process stay. Bound stops all threads once for each capability, so it is cheapest while there are few threads.
func Bound(keep Set) error {
	bound, err := current("CapBnd")
	if err != nil {
		return err
	}
	for rest := bound &^ keep; rest != 0; rest &= rest - 1 {
		n := bits.TrailingZeros64(uint64(rest))
		err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0)
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("drop capability %d from the bounding set: %w: start the process with CAP_SETPCAP, or with a bounding set of %s",
				n, err, keep)
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", n, err)
		}
	}
	return nil
}

func onAllThreads(trap, a, b, c, d, e uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall6(trap, a, b, c, d, e, 0); errno != 0 {
		return errno
	}
	return nil
}

// Effective returns the effective capabilities of the calling thread.
func Effective() (Set, error) { return current("CapEff") }

// current reads one set of the calling thread; name is its name in /proc/thread-self/status.
func current(name string) (Set, error) {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read the capabilities of this process: %s: %w", name, err)
			}
			return Set(set), nil
		}
	}
	return 0, fmt.Errorf("read the capabilities of this process: /proc has no %s: mount procfs on /proc", name)
}
