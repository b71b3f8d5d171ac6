package cni

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// usableTimeout is far beyond what the kernel takes for what it does later. One queue serves all namespaces, and its
	// worker needs the lock of all changes to links: with a hundred pods at once on two busy CPUs, 2 s were too few.
	usableTimeout = 10 * time.Second
	// usablePoll is the pause before the second look; the kernel's workers take well under a millisecond, most often.
	usablePoll = 200 * time.Microsecond
	// usablePollMax is the longest pause: looks need the same lock.
	usablePollMax = 50 * time.Millisecond
)

// awaitUsable waits until the pod can send and receive. The kernel does two things from work queues, some time after it
// was told to, and what the first process of the pod does until then would cost it a second or more:
//   - The agent has set the host end up, but the pod's end learns that later, and drops in silence whatever is sent.
//   - The local route of an IPv6 address stands later than the address, and an answer that arrives before it is for
//     somebody else, as far as the pod's kernel knows (Ip6InAddrErrors; 3 of 681 first pings on a busy machine).
func (pod *podHandle) awaitUsable(ctx context.Context, name string, index int, n network) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	for pause := usablePoll; ; pause = min(2*pause, usablePollMax) {
		missing, err := pod.missing(name, index, n)
		if err != nil || missing == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s in the pod: %s after %v", name, missing, usableTimeout)
		case <-time.After(pause):
		}
	}
}

// missing says what keeps the pod from sending or receiving; "" when nothing does.
func (pod *podHandle) missing(name string, index int, n network) (string, error) {
	link, err := pod.LinkByIndex(index)
	if err != nil {
		return "", fmt.Errorf("look up %s in the pod: %w", name, err)
	}
	if state := link.Attrs().OperState; state != netlink.OperUp {
		return fmt.Sprintf("its carrier is %s", state), nil
	}
	for _, f := range n.families {
		if !f.addr.Is6() {
			continue // the route of an IPv4 address comes with it
		}
		routes, err := pod.RouteGet(f.addr.AsSlice())
		if err != nil {
			return "", fmt.Errorf("look up the route to %s in the pod: %w", f.addr, err)
		}
		if len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			return fmt.Sprintf("%s is not local", f.addr), nil
		}
	}
	return "", nil
}
