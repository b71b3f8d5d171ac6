package k8sobjects

import (
	"fmt"
	"runtime"
	"strings"
)

// origin returns the functions and lines of the current panic, innermost first, for a deferred function.
func origin() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var lines []string
	for frame, more := frames.Next(); more && len(lines) < 3; frame, more = frames.Next() {
		if !strings.HasPrefix(frame.Function, "runtime.") {
			lines = append(lines, fmt.Sprintf("%s:%d", frame.Function, frame.Line))
		}
	}
	return strings.Join(lines, ", ")
}
