package nodehealthprober

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
)

func TestAfter(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ended := began.Add(time.Second)
	answered := outcome{began: began, ended: ended, latency: time.Millisecond}
	failed, local := answered, answered
	failed.err, local.err = syscall.ECONNREFUSED, fmt.Errorf("%w: %w", icmpecho.ErrLocal, syscall.EMFILE)
	good := nodehealth.Check{State: nodehealth.Reachable, Latency: time.Millisecond, Answered: ended, Asked: began}
	fail := func(c nodehealth.Check, state nodehealth.State, strikes int, text string) nodehealth.Check {
		c.State, c.Asked, c.Strikes, c.Error = state, began, strikes, text
		return c
	}
	const refused, tooMany = "connection refused", "not probed: too many open files"
	unknown := nodehealth.Check{State: nodehealth.Unknown}
	bad := fail(good, nodehealth.Unreachable, 3, refused)
	for name, test := range map[string]struct {
		before nodehealth.Check
		o      outcome
		want   nodehealth.Check
	}{
		"left out":                  {good, outcome{}, good},
		"answered":                  {unknown, answered, good},
		"reply after failures":      {bad, answered, good},
		"failed, never a reply":     {unknown, failed, fail(unknown, nodehealth.Unknown, 1, refused)},
		"failed":                    {good, failed, fail(good, nodehealth.Reachable, 1, refused)},
		"failed again":              {fail(good, nodehealth.Reachable, 1, refused), failed, fail(good, nodehealth.Reachable, 2, refused)},
		"failed for the third time": {fail(good, nodehealth.Reachable, 2, refused), failed, bad},
		"failed while unreachable":  {bad, failed, bad},
		"not sent":                  {good, local, fail(good, nodehealth.Unknown, 0, tooMany)},
		"not sent, was unreachable": {bad, local, fail(good, nodehealth.Unknown, 0, tooMany)},
	} {
		if got := after(test.before, test.o); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// Errors of this node say nothing about another node.
func TestLocal(t *testing.T) {
	t.Parallel()
	for number, want := range map[syscall.Errno]bool{
		syscall.EPERM: true, syscall.EMFILE: true, syscall.EADDRNOTAVAIL: true, syscall.EAFNOSUPPORT: true,
		syscall.ECONNREFUSED: false, syscall.EHOSTUNREACH: false, syscall.ENETUNREACH: false, syscall.ECONNRESET: false, syscall.ENOBUFS: false,
	} {
		err := icmpecho.Local(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)})
		if got := errors.Is(err, icmpecho.ErrLocal); got != want || !errors.Is(err, number) {
			t.Errorf("%v becomes %v", number, err)
		}
	}
	if err := icmpecho.Local(context.DeadlineExceeded); errors.Is(err, icmpecho.ErrLocal) {
		t.Errorf("a timeout becomes %v", err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"Connection timed out":           fmt.Errorf("dial: %w", context.DeadlineExceeded),
		"no route to host":               fmt.Errorf("dial tcp: %w", syscall.EHOSTUNREACH),
		`bad \x1b[31m`:                   errors.New("bad \x1b[31m"),
		strings.Repeat("x", 120) + "...": errors.New(strings.Repeat("x", 200)),
	} {
		if got := describe(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
