package podmtu

import (
	"errors"
	"fmt"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// The kernel drops a packet silently when it is longer than the MTU of the receiving end of a veth pair. So a change has two stages, each for all
// pods before the next one begins: the first raises receivers and lowers senders, the second does the reverse.

var (
	errByHand  = errors.New("set by hand")
	errWaiting = errors.New("not yet")
)

// visit is a pod with its desired size.
type visit struct {
	pod  pod
	ep   *endpoints.Endpoint
	want size
	ours *record
	// announce is called before the host end is changed.
	announce func()
}

// prepare is the first stage. Afterwards each packet that fit the pod before still fits, or the pod may no longer send it.
func (v visit) prepare() error {
	have, err := v.look()
	if err != nil {
		return err
	}
	if have.host < v.want.Device { // before the pod sends packets of that length
		v.announce()
		if err := v.pod.SetHost(v.want.Device); err != nil {
			return err
		}
	}
	if have.link < v.want.Device {
		if err := v.pod.SetLink(v.want.Device); err != nil {
			return err
		}
	}
	return v.setRoutes(have, func(mtu int) bool { return mtu > v.want.Route })
}

// complete is the second stage. It sets the MTU of IPv6 routes that the kernel raised with the link in the first stage.
func (v visit) complete() error {
	have, err := v.look()
	if err != nil {
		return err
	}
	if have.link > v.want.Device {
		if err := v.pod.SetLink(v.want.Device); err != nil {
			return err
		}
	}
	if have.host != v.want.Device { // after the pod has stopped sending longer packets
		v.announce()
		if err := v.pod.SetHost(v.want.Device); err != nil {
			return err
		}
	}
	return v.setRoutes(have, func(mtu int) bool { return mtu != v.want.Route })
}

// look reads the sizes of the pod. The error is [errByHand] if this node has not assigned one of them, and [errWaiting] while a default route is missing:
// the plugin adds routes while the agent creates the endpoint, with the MTU that it requested before.
func (v visit) look() (sizes, error) {
	have, err := v.pod.ReadSizes()
	if err != nil {
		return have, err
	}
	if !v.ours.link(have.link) {
		return have, fmt.Errorf("%w: the link has %d bytes", errByHand, have.link)
	}
	missing := map[bool]bool{false: v.ep.IPv4.IsValid(), true: v.ep.IPv6.IsValid()}
	for _, r := range have.routes {
		if r.locked || !v.ours.route(r.mtu) {
			return have, fmt.Errorf("%w: the default route of %s has %s", errByHand, family(r.ipv6), r.size())
		}
		delete(missing, r.ipv6)
	}
	for _, ipv6 := range []bool{false, true} {
		if missing[ipv6] {
			return have, fmt.Errorf("%w: there is no default route of %s", errWaiting, family(ipv6))
		}
	}
	return have, nil
}

func (v visit) setRoutes(have sizes, differs func(mtu int) bool) error {
	for _, r := range have.routes {
		if !differs(r.mtu) {
			continue
		}
		if err := v.pod.SetRoute(r, v.want.Route); err != nil {
			return err
		}
	}
	return nil
}

func (r route) size() string {
	switch {
	case r.locked:
		return fmt.Sprintf("a locked MTU of %d bytes", r.mtu)
	case r.mtu == 0:
		return "no MTU of its own"
	}
	return fmt.Sprintf("%d bytes", r.mtu)
}

func family(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}
