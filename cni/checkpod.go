package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

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
	have, err := pod.Routes()
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range e.routes {
		if want == nil {
			continue
		}
		if !slices.ContainsFunc(have, func(r netlink.Route) bool {
			return r.LinkIndex == link.Attrs().Index && samePrefix(r.Dst, &want.Dst) && (want.GW == nil || r.Gw.Equal(want.GW))
		}) {
			errs = append(errs, fmt.Errorf("interface %s in the pod: route %s is missing", e.pod.Name, &want.Dst))
		}
	}
	return errors.Join(errs...)
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
