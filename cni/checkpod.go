package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
)

// maxDumps is how often a dump that the kernel interrupted is repeated.
const maxDumps = 5

// dump repeats a dump until it is whole: what changes meanwhile in the pod's namespace may interrupt it.
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	var all []T
	var err error
	for range maxDumps {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the %s in the pod: %w", what, err)
	}
	return all, nil
}

func (e *expected) checkAddresses(pod *podHandle, link netlink.Link) error {
	have, err := dump("addresses", func() ([]netlink.Addr, error) { return pod.AddrList(link, netlink.FAMILY_ALL) })
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
	have, err := dump("routes", func() ([]netlink.Route, error) { return pod.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range e.routes {
		if want == nil {
			continue
		}
		if !slices.ContainsFunc(have, func(r netlink.Route) bool {
			return samePrefix(r.Dst, &want.Dst) && (want.GW == nil || r.Gw.Equal(want.GW))
		}) {
			errs = append(errs, fmt.Errorf("interface %s in the pod: route %s is missing", e.pod.Name, &want.Dst))
		}
	}
	return errors.Join(errs...)
}

// checkNeighbors wants the permanent entry of each gateway.
func (e *expected) checkNeighbors(pod *podHandle, link netlink.Link) error {
	have, err := dump("neighbours", func() ([]netlink.Neigh, error) { return pod.NeighList(link.Attrs().Index, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range e.ips {
		if ip.Gateway == nil {
			continue
		}
		if !slices.ContainsFunc(have, func(n netlink.Neigh) bool {
			return n.IP.Equal(ip.Gateway) && n.State&netlink.NUD_PERMANENT != 0 && n.HardwareAddr.String() == e.host.Mac
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
