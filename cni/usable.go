package cni

import (
	"context"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

const (
	// usableTimeout is far more than the kernel's deferred work takes. One work queue serves all namespaces, and its worker needs the lock of all link
	// changes: with a hundred concurrent pods on two busy CPUs, 2 s were too few.
	usableTimeout = 10 * time.Second
	// usablePoll is the pause before the second check. The kernel's workers usually take well under a millisecond.
	usablePoll = 200 * time.Microsecond
	// usablePollMax is the longest pause: each check needs the same lock.
	usablePollMax = 50 * time.Millisecond
)

// awaitUsable waits until the pod can send and receive. The kernel completes two changes in work queues. Packets before their completion are lost, which
// delays the first process of the pod by a second or more:
//
//   - An end of the link that is set up before the other one learns later that its peer is up, and until then silently drops the packets sent
//     into it (linkwatch, net/core/link_watch.c). The agent sets up the host end and the plugin the pod's end concurrently, in either order.
//   - The kernel adds the local route of an IPv6 address after the address. The pod's kernel drops replies that arrive before that as
//     packets to a foreign address (Ip6InAddrErrors; 3 of 681 first pings on a busy machine).
func (a *addition) awaitUsable(ctx context.Context) *types.Error {
	waiting, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	for pause := usablePoll; ; pause = min(2*pause, usablePollMax) {
		missing, err := a.missing()
		if err != nil {
			return failure(codeKernel, err, "is another program deleting links?")
		}
		if missing == "" {
			return nil
		}
		select {
		case <-waiting.Done():
			return failure(codeKernel, fmt.Errorf("wait until the pod can send and receive: %s after %v", missing, usableTimeout), "did another program set an end of the link down?")
		case <-time.After(pause):
		}
	}
}

// missing returns the reason why the pod cannot send or receive, or "" if there is none.
func (a *addition) missing() (string, error) {
	for _, end := range []struct {
		place, name string
		index       int
		handle      *rtnl.Handle
	}{{"on the node", a.spec.hostName, a.link.index, a.host}, {"in the pod", a.spec.podName, a.link.peer, a.pod.Handle}} {
		link, err := end.handle.LinkByIndex(end.index) // takes the lock under which the kernel activates an end that is up
		if err != nil {
			return "", fmt.Errorf("look up %s %s: %w", end.name, end.place, err)
		}
		if state := link.Attrs().OperState; state != netlink.OperUp {
			return fmt.Sprintf("the carrier of %s %s is %s", end.name, end.place, state), nil
		}
	}
	for _, f := range a.net.families {
		if !f.addr.Is6() {
			continue // the kernel adds the route of an IPv4 address together with the address
		}
		routes, err := a.pod.RouteGet(f.addr.AsSlice())
		if err != nil {
			return "", fmt.Errorf("look up the route to %s in the pod: %w", f.addr, err)
		}
		if len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			return fmt.Sprintf("%s is not local in the pod", f.addr), nil
		}
	}
	return "", nil
}
