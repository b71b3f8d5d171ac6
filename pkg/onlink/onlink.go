// Package onlink finds the device on whose link an address is. It uses the main routing table without the agent's own routes.
package onlink

import (
	"fmt"
	"iter"
	"net/netip"

	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// Network is the main routing table without the agent's own routes.
type Network struct {
	routes  bart.Table[*devices.Route]
	devices map[int]*devices.Device // by index
}

// Read builds a network from rows of the tables routes and devices.
func Read(routes []*devices.Route, links []*devices.Device) *Network {
	n := &Network{devices: make(map[int]*devices.Device, len(links))}
	for _, d := range links {
		n.devices[d.Index] = d
	}
	for _, r := range routes {
		if !isForeign(r) || n.devices[r.LinkIndex] == nil {
			continue
		}
		if known, found := n.routes.Get(r.Dst); !found || r.Priority < known.Priority {
			n.routes.Insert(r.Dst, r)
		}
	}
	return n
}

// Device returns the device on whose link an address is. It returns an error for an address behind a gateway.
func (n *Network) Device(addr netip.Addr) (*devices.Device, error) {
	r, found := n.routes.Lookup(addr)
	if !found {
		return nil, fmt.Errorf("no route leads to its address %s", addr)
	}
	if r.Gw.IsValid() {
		return nil, fmt.Errorf("the gateway %s leads to its address %s", r.Gw, addr)
	}
	return n.devices[r.LinkIndex], nil
}

// Subnets returns the subnets of the devices: the destinations of routes without a gateway, except the default route.
func (n *Network) Subnets() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for p, r := range n.routes.All() {
			if isSubnet(r) && !yield(p) {
				return
			}
		}
	}
}

// isSubnet reports whether a route leads to neighbours. A default route without a gateway is no subnet.
func isSubnet(r *devices.Route) bool { return !r.Gw.IsValid() && r.Dst.Bits() != 0 }

// Covers returns the name of the device whose subnet contains a range, or "".
func (n *Network) Covers(p netip.Prefix) string {
	r, found := n.routes.LookupPrefix(p)
	if !found || !isSubnet(r) {
		return ""
	}
	return n.devices[r.LinkIndex].Name
}
