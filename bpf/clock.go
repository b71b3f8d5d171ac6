package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timeOffsets holds the offsets between the clocks of this process and the kernel's: time_namespaces(7).
const timeOffsets = "/proc/self/timens_offsets"

// CtNow returns the time of the kernel's coarse clock in ticks since boot, as the programs read it, also in a time namespace. The precise clock is up to 10
// ms ahead of it, and would sometimes be one tick ahead.
func CtNow() (uint32, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	text, err := os.ReadFile(timeOffsets)
	if errors.Is(err, fs.ErrNotExist) { // a kernel without time namespaces
		text, err = nil, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read by how much clocks differ in this time namespace: %w", err)
	}
	offset, err := monotonicOffset(string(text))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", timeOffsets, err)
	}
	return uint32((time.Duration(now.Nano()) - offset) >> ctTickShift), nil
}

// monotonicOffset parses the first line: the clock's name, seconds and nanoseconds. An empty text means no offset.
func monotonicOffset(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	var seconds, nanos int64
	if _, err := fmt.Sscanf(text, "monotonic %d %d", &seconds, &nanos); err != nil {
		return 0, fmt.Errorf("%q does not begin with the offset of the monotonic clock: %w", text, err)
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos), nil
}
