package main

import (
	"testing"
	"time"
)

func TestSlowness(t *testing.T) {
	t.Parallel()
	for start, want := range map[time.Duration]float64{
		0:                      1,
		500 * time.Microsecond: 1,
		time.Millisecond:       1,
		2 * time.Millisecond:   2,
		time.Second:            maxSlowness,
	} {
		if got := slownessOf(start); got != want {
			t.Errorf("a start takes %v: %v, want %v", start, got, want)
		}
	}
	if got, err := slowness(); err != nil || got < 1 || got > maxSlowness {
		t.Errorf("this machine: %v, %v", got, err)
	}
}
