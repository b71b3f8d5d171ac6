package bpf

import (
	"testing"
	"time"
)

func TestMonotonicOffset(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0,
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic      864000         5\nboottime            7         0\n": 10*24*time.Hour + 5,
		"monotonic        -100 999999999\nboottime        -100         0\n":  -100*time.Second + 999999999,
	} {
		if got, err := monotonicOffset(text); err != nil || got != want {
			t.Errorf("%q: %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"boottime 0 0\n", "monotonic\n", "monotonic x 0\n", "\n"} {
		if _, err := monotonicOffset(text); err == nil {
			t.Errorf("%q is taken for an offset", text)
		}
	}
}
