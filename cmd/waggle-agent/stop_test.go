package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The times of a stop equal the ones in Documentation/liveness.md and scale with the flag.
func TestStopTimes(t *testing.T) {
	t.Parallel()
	want := stopTimes{record: 3 * time.Second, hooks: 4 * time.Second, exit: 4500 * time.Millisecond}
	if got := timesOfStop(stopTimeout); got != want {
		t.Errorf("by default %+v, want %+v", got, want)
	}
	if got, want := timesOfStop(9*time.Second), (stopTimes{6 * time.Second, 8 * time.Second, 9 * time.Second}); got != want {
		t.Errorf("with a flag %+v, want %+v", got, want)
	}
}

func TestStopTimeout_IsHiddenAndChecked(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := run([]string{"--help"}, nil, &out, &out); code != 0 || strings.Contains(out.String(), stopTimeoutFlag) {
		t.Errorf("exit code %d, the help says:\n%s", code, out.String())
	}
	out.Reset()
	if code := run([]string{"--" + stopTimeoutFlag + "=0s", "--state-dir", t.TempDir()}, nil, &out, &out); code != 1 || !strings.Contains(out.String(), "must be positive") {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}
