package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dumpAttempts limits the attempts of a dump that concurrent changes interrupt. On a node whose links change constantly, a dump of hundreds of links may be
// interrupted several times in a row.
const dumpAttempts = 20

// retry repeats a dump until it is not interrupted, because an interrupted dump may lack objects or contain some twice.
func retry[T any](what string, dump func() ([]T, error)) ([]T, error) {
	var err error
	for range dumpAttempts {
		var all []T
		if all, err = dump(); err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return nil, fmt.Errorf("list %s: %w", what, err)
}

// Links lists all links.
func (h *Handle) Links() ([]netlink.Link, error) {
	return retry("links", h.Handle.LinkList)
}

// Addresses lists the addresses of all links and both families.
func (h *Handle) Addresses() ([]netlink.Addr, error) {
	return retry("addresses", func() ([]netlink.Addr, error) { return h.Handle.AddrList(nil, netlink.FAMILY_ALL) })
}

// AddressesOf lists the addresses of one link.
func (h *Handle) AddressesOf(link netlink.Link) ([]netlink.Addr, error) {
	return retry("addresses of "+link.Attrs().Name, func() ([]netlink.Addr, error) {
		return h.Handle.AddrList(link, netlink.FAMILY_ALL)
	})
}

// Routes lists the routes of all tables and both families.
func (h *Handle) Routes() ([]netlink.Route, error) {
	return retry("routes", func() ([]netlink.Route, error) {
		every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		v4, err := h.Handle.RouteListFiltered(netlink.FAMILY_V4, every, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		v6, err := h.Handle.RouteListFiltered(netlink.FAMILY_V6, every, netlink.RT_FILTER_TABLE)
		return append(v4, v6...), err
	})
}

// EachRoute calls do with the routes of all tables and both families over a link, until do returns false. It keeps no route in memory: a namespace that a pod
// controls may have millions. It may call do several times with one route.
func (h *Handle) EachRoute(link int, do func(netlink.Route) (more bool)) error {
	filter := &netlink.Route{LinkIndex: link, Table: unix.RT_TABLE_UNSPEC}
	return eachRoute(func(family int, do func(netlink.Route) bool) error {
		return h.Handle.RouteListFilteredIter(family, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE, do)
	}, do)
}

// eachRoute calls do with the routes of both families from dump, until do returns false.
func eachRoute(dump func(family int, do func(netlink.Route) bool) error, do func(netlink.Route) (more bool)) error {
	_, err := retry("routes", func() ([]netlink.Route, error) {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			more := true
			err := dump(family, func(r netlink.Route) bool {
				more = do(r)
				return more
			})
			if !more {
				return nil, nil // an interruption is irrelevant to a search that has ended
			}
			if err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	return err
}

// DefaultRoutes lists the default routes of the main table over a link, of both families and at most limit. It loads no other route into memory: a namespace
// that a pod controls may have millions.
func (h *Handle) DefaultRoutes(link, limit int) ([]netlink.Route, error) {
	return retry("default routes", func() (all []netlink.Route, err error) {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			// Without a destination and a table, the filter selects default routes and the main table.
			filter := &netlink.Route{LinkIndex: link, Type: unix.RTN_UNICAST}
			err := h.Handle.RouteListFilteredIter(family, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_DST, func(r netlink.Route) bool {
				if len(all) < limit {
					all = append(all, r)
				}
				return len(all) < limit
			})
			if err != nil {
				return nil, err
			}
		}
		return all, nil
	})
}

// Neighbors lists the neighbours of all links and both families.
func (h *Handle) Neighbors() ([]netlink.Neigh, error) {
	return retry("neighbours", func() ([]netlink.Neigh, error) { return h.Handle.NeighList(0, netlink.FAMILY_ALL) })
}
