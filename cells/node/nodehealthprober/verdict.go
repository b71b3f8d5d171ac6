package nodehealthprober

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
)

// strikes is the number of probes in a row that must fail before an address is unreachable: a single lost packet is not a failure.
const strikes = 3

// outcome is the result of one protocol in one probe.
type outcome struct {
	began   time.Time     // start of the probe; zero when the probe omitted the protocol
	latency time.Duration // valid without an error
	err     error
	ended   time.Time
}

// after returns the check after a probe. One reply proves that the address is reachable. A probe that this node cannot send makes the state unknown, because
// the last verdict cannot be renewed.
func after(c nodehealth.Check, o outcome) nodehealth.Check {
	switch {
	case o.began.IsZero():
		return c
	case o.err == nil:
		return nodehealth.Check{State: nodehealth.Reachable, Latency: o.latency, Answered: o.ended, Asked: o.began}
	}
	c.Asked, c.Error = o.began, describe(o.err)
	switch {
	case errors.Is(o.err, icmpecho.ErrLocal):
		c.State, c.Strikes = nodehealth.Unknown, 0
	case c.Strikes+1 >= strikes:
		c.State, c.Strikes = nodehealth.Unreachable, strikes
	default:
		c.Strikes++
	}
	return c
}

// suspected reports whether the last probe failed without a verdict yet.
func suspected(c nodehealth.Check) bool { return c.Strikes > 0 && c.Strikes < strikes }

// well reports whether the last probe got a reply.
func well(c nodehealth.Check) bool { return c.State == nodehealth.Reachable && c.Strikes == 0 }

// maxError limits the text of an error in bytes.
const maxError = 120

// describe returns the text of an error for operators. A timeout has Cilium's text. The text may contain bytes from the peer, so non-printable characters are
// replaced and its length is limited.
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
