package cni

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// carrierTimeout is far beyond what the kernel takes to notice that the other end came up.
	carrierTimeout = 2 * time.Second
	// carrierPoll is the pause before the first look but one; the kernel's worker takes well under a millisecond.
	carrierPoll = 200 * time.Microsecond
)

// awaitCarrier waits until a link can send. The agent has set the host end up by then, but the kernel tells the pod's
// end so from a work queue, and until that has run the link drops in silence whatever the pod sends: a SYN of the first
// process would cost it a second.
func (pod *podHandle) awaitCarrier(ctx context.Context, name string, index int) error {
	ctx, cancel := context.WithTimeout(ctx, carrierTimeout)
	defer cancel()
	for pause := carrierPoll; ; pause *= 2 {
		link, err := pod.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("look up %s in the pod: %w", name, err)
		}
		state := link.Attrs().OperState
		if state == netlink.OperUp {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the carrier of %s in the pod: it is %s after %v", name, state, carrierTimeout)
		case <-time.After(pause):
		}
	}
}
