package reflectors

import (
	"context"
	"testing"
	"time"
)

// An agent that stops writes changes to the copy, also if its context has ended before it checks for them.
func TestChanged_ContextEnded_ReportsChange(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	still, closed := make(chan struct{}), make(chan struct{})
	close(closed)
	for range 1000 {
		if !changed(ended, []<-chan struct{}{still, closed}, time.Hour) {
			t.Fatal("a change was not seen")
		}
	}
	if changed(ended, []<-chan struct{}{still}, time.Hour) {
		t.Error("a change was seen where there was none")
	}
	if changed(t.Context(), []<-chan struct{}{still}, time.Nanosecond) {
		t.Error("the time that has passed was taken for a change")
	}
}
