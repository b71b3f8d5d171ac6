package kube

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds of the pause between two calls of a check.
const minPause, maxPause = 50 * time.Millisecond, 500 * time.Millisecond

// waitTimeout limits waits that take seconds on an idle machine: a busy machine must not fail a test, and a hang must be detected.
const waitTimeout = 3 * time.Minute

// WaitFor calls check until it returns nil. The pause between calls is three times the duration of a call, within bounds, so that the tested processes get
// the CPU. WaitFor returns an error when the context ends, after waitTimeout if the context has no deadline, or when a component has ended unexpectedly. The
// error wraps the last error of check.
func (c *Cluster) WaitFor(ctx context.Context, what string, check func() error) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, waitTimeout)
		defer cancel()
	}
	began := time.Now()
	var last error
	for {
		called := time.Now()
		// The error of a check that the context cut short must not replace the previous, more useful one.
		if err := check(); err == nil {
			return nil
		} else if last == nil || ctx.Err() == nil {
			last = err
		}
		ended := c.Ended()
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s, %s long: %w; the components' last words:\n%s", what,
				time.Since(began).Round(time.Second), last, c.Tails(5))
		case <-time.After(min(max(3*time.Since(called), minPause), maxPause)):
		}
		if ended != nil {
			return fmt.Errorf("wait for %s: %w (last: %w)", what, ended, last)
		}
	}
}

// Ended returns an error that names the components that ended without being stopped, or nil if there are none.
func (c *Cluster) Ended() error {
	var failed error
	for _, p := range c.processes() {
		failed = errors.Join(failed, p.ended())
	}
	return failed
}

// Tails returns the last lines of each component's log.
func (c *Cluster) Tails(lines int) (text string) {
	for _, p := range c.processes() {
		text += p.Name + ":\n" + tail(p.log, lines) + "\n"
	}
	return text
}
