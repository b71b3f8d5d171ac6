package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
)

func (e *expected) checkAddresses(pod *podHandle, link netlink.Link) error {
	have, err := pod.AddressesOf(link)
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range e.ips {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return samePrefix(a.IPNet, &ip.Address) }) {
			errs = append(errs, fmt.Errorf("interface %s in the pod: address %s is missing", e.pod.Name, &ip.Address))
		}
	}
	return errors.Join(errs...)
}

func (e *expected) checkRoutes(pod *podHandle, link netlink.Link) error {
	missing := newMissingRoutes(e.routes)
	if err := pod.EachRoute(link.Attrs().Index, missing.found); err != nil {
		return err
	}
	var errs []error
	for _, want := range missing.routes {
		errs = append(errs, fmt.Errorf("interface %s in the pod: route %s is missing", e.pod.Name, &want.Dst))
	}
	return errors.Join(errs...)
}

// missingRoutes are the routes of a result that a dump has not contained so far. A pod with NET_ADMIN may have millions of other routes.
type missingRoutes struct{ routes []*types.Route }

func newMissingRoutes(want []*types.Route) *missingRoutes {
	return &missingRoutes{slices.DeleteFunc(slices.Clone(want), func(r *types.Route) bool { return r == nil })}
}

// found removes a route from the missing ones, and reports whether any remain.
func (m *missingRoutes) found(r netlink.Route) (remain bool) {
	m.routes = slices.DeleteFunc(m.routes, func(want *types.Route) bool {
		return samePrefix(r.Dst, &want.Dst) && (want.GW == nil || r.Gw.Equal(want.GW))
	})
	return len(m.routes) > 0
}

// checkNeighbors requires the permanent neighbour entry of each gateway.
func (e *expected) checkNeighbors(pod *podHandle, link netlink.Link) error {
	have, err := pod.Neighbors()
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range e.ips {
		if ip.Gateway == nil {
			continue
		}
		if !slices.ContainsFunc(have, func(n netlink.Neigh) bool {
			return n.LinkIndex == link.Attrs().Index && n.IP.Equal(ip.Gateway) &&
				n.State&netlink.NUD_PERMANENT != 0 && n.HardwareAddr.String() == e.host.Mac
		}) {
			errs = append(errs, fmt.Errorf("interface %s in the pod: the neighbour entry of gateway %s is missing or changed",
				e.pod.Name, ip.Gateway))
		}
	}
	return errors.Join(errs...)
}

func samePrefix(a, b *net.IPNet) bool {
	return a != nil && b != nil && a.IP.Equal(b.IP) && bytes.Equal(a.Mask, b.Mask)
}
