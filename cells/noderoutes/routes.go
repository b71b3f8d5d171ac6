package noderoutes

import (
	"fmt"
	"net/netip"

	"github.com/gaissmai/bart"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// network is the main routing table without the agent's own routes.
type network struct {
	routes  bart.Table[*devices.Route]
	devices map[int]string // names by index
}

// read builds a network from rows of the tables routes and devices.
func read(routes []*devices.Route, links []*devices.Device) *network {
	n := &network{devices: make(map[int]string, len(links))}
	for _, d := range links {
		n.devices[d.Index] = d.Name
	}
	for _, r := range routes {
		if r.Table != desiredroutes.MainTable || r.Type != unix.RTN_UNICAST || r.Protocol == desiredroutes.Protocol || n.devices[r.LinkIndex] == "" {
			continue
		}
		if known, found := n.routes.Get(r.Dst); !found || r.Priority < known.Priority {
			n.routes.Insert(r.Dst, r)
		}
	}
	return n
}

// device returns the device on whose link an address is. It returns an error for an address behind a gateway.
func (n *network) device(addr netip.Addr) (name string, err error) {
	r, found := n.routes.Lookup(addr)
	if !found {
		return "", fmt.Errorf("no route leads to its address %s", addr)
	}
	if r.Gw.IsValid() {
		return "", fmt.Errorf("the gateway %s leads to its address %s", r.Gw, addr)
	}
	return n.devices[r.LinkIndex], nil
}

// covers returns the device whose subnet contains a range, or "".
func (n *network) covers(p netip.Prefix) string {
	r, found := n.routes.LookupPrefix(p)
	if !found || r.Gw.IsValid() || r.Dst.Bits() == 0 { // a default route without a gateway is no subnet
		return ""
	}
	return n.devices[r.LinkIndex]
}

// unreachable is the error for a node on another link.
type unreachable struct {
	node string
	why  error
}

func (u unreachable) Error() string {
	return fmt.Sprintf("node %s is not on the same link: %v", u.node, u.why)
}

// routesTo returns a route to each pod range of the other nodes, and the reasons for missing ones.
func routesTo(all []*nodes.Node, n *network) (routes []desiredroutes.Route, problems []error) {
	for _, node := range all {
		if node.Source == nodes.Local {
			continue
		}
		for _, ipv6 := range []bool{false, true} {
			found, err := routesOf(node, ipv6, n)
			routes, problems = append(routes, found...), append(problems, err...)
		}
	}
	return routes, problems
}

// routesOf returns the routes to one node in one address family.
func routesOf(node *nodes.Node, ipv6 bool, n *network) (routes []desiredroutes.Route, problems []error) {
	hop := node.Address(ipv6)
	var device string
	for _, p := range node.CIDRs {
		if p.Addr().Is6() != ipv6 {
			continue
		}
		if device == "" {
			var err error
			if !hop.IsValid() {
				err = fmt.Errorf("it has no address of the family of %s", p)
			} else {
				device, err = n.device(hop)
			}
			if err != nil {
				return nil, []error{unreachable{node.Name, err}}
			}
		}
		if taken := n.covers(p); taken != "" {
			problems = append(problems, fmt.Errorf("range %s of node %s lies in the subnet of %s", p, node.Name, taken))
			continue
		}
		routes = append(routes, desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: device, Gw: hop})
	}
	return routes, problems
}
