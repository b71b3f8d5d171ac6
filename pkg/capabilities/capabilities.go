// Package capabilities gives away what a process may do and no longer needs. Capabilities belong to threads; this package
// changes all threads of the process, and those that the runtime starts later inherit it.
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

// Set is a set of capabilities, one bit each.
type Set uint64

// Agent is what the running agent needs: links, routes, sysctls of the network, maps and programs.
const Agent Set = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_PERFMON | 1<<unix.CAP_BPF

// Probes is what ICMP probes of other nodes need.
const Probes Set = 1 << unix.CAP_NET_RAW

// Namespaces is what entering the network namespaces of others needs.
const Namespaces Set = 1 << unix.CAP_SYS_ADMIN

// String lists the ones of [Agent], [Probes] and [Namespaces] by name and others by number.
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

// Drop takes from all threads every capability outside keep, also those that a program started later could gain. What the
// process never had it does not get. It needs a program without cgo, as all of ours are.
func Drop(keep Set) error {
	have, err := current("CapEff")
	if err != nil {
		return err
	}
	bounded := Bound(keep) // a process that may not shrink this set can still give away what it has
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

// Bound removes capabilities from the bounding set, which needs CAP_SETPCAP unless it is small enough already. What the
// process may do now stays. It stops all threads once for each capability, so it is cheapest while there are few.
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

// Effective is what the process may do now.
func Effective() (Set, error) { return current("CapEff") }

// current reads one set of the calling thread.
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
