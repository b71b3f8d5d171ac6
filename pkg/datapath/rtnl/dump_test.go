package rtnl

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestEachRoute_InterruptedDump_IsNoErrorWhenAllIsFound: a pod may change its routes all the time, so that each dump is interrupted.
func TestEachRoute_InterruptedDump_IsNoErrorWhenAllIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		find  int // number of the route after which the search ends
		dump  error
		calls int
		want  error
	}{
		"found in the first family":      {1, netlink.ErrDumpInterrupted, 1, nil},
		"found in the second family":     {4, nil, 4, nil},
		"found in the second attempt":    {5, netlink.ErrDumpInterrupted, 5, nil},
		"not found, always interrupted":  {1000, netlink.ErrDumpInterrupted, 3 * dumpAttempts, netlink.ErrDumpInterrupted},
		"not found, nothing interrupted": {1000, nil, 6, nil},
		"a rejection":                    {1000, unix.EPERM, 3, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			err := eachRoute(func(_ int, do func(netlink.Route) bool) error {
				for range 3 {
					if !do(netlink.Route{}) {
						break
					}
				}
				return c.dump // the library reads the rest of the dump
			}, func(netlink.Route) bool { calls++; return calls < c.find })
			if !errors.Is(err, c.want) || calls != c.calls {
				t.Fatalf("%d routes, %v; want %d, %v", calls, err, c.calls, c.want)
			}
		})
	}
}
