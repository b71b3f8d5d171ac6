package nodehealth

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/printable"
	tables "github.com/waggle-net/waggle/pkg/tables/nodehealth"
)

// strikes is how many probes in a row must fail before an address counts as unreachable: one lost packet means nothing.
const strikes = 3

// outcome is what one probe has found with one protocol.
type outcome struct {
	began   time.Time     // of the probe; zero when it left the protocol out
	latency time.Duration // valid without an error
	err     error
	ended   time.Time
}

// after returns the check after a probe. One answer proves that the address is reachable. A probe that this node cannot send makes the state unknown,
// because the last verdict cannot be renewed.
func after(c tables.Check, o outcome) tables.Check {
	switch {
	case o.began.IsZero():
		return c
	case o.err == nil:
		return tables.Check{State: tables.Reachable, Latency: o.latency, Answered: o.ended, Asked: o.began}
	}
	c.Asked, c.Error = o.began, describe(o.err)
	switch {
	case errors.Is(o.err, icmpecho.ErrLocal):
		c.State, c.Strikes = tables.Unknown, 0
	case c.Strikes+1 >= strikes:
		c.State, c.Strikes = tables.Unreachable, strikes
	default:
		c.Strikes++
	}
	return c
}

// suspected reports whether the last probe failed and the verdict is still open.
func suspected(c tables.Check) bool { return c.Strikes > 0 && c.Strikes < strikes }

// well reports whether the last probe was answered.
func well(c tables.Check) bool { return c.State == tables.Reachable && c.Strikes == 0 }

// maxError limits the text of an error in bytes.
const maxError = 120

// describe returns the text of an error for operators. A timeout has Cilium's text. The text may contain bytes that the peer sent, so it is made
// printable and cut.
func describe(err error) string {
	var number syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "Connection timed out"
	case errors.As(err, &number) && !errors.Is(err, icmpecho.ErrLocal):
		return number.Error()
	}
	return printable.Short(err.Error(), maxError)
}
