package noderoutes

import (
	"fmt"

	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// unreachable is the error for a node on another link.
type unreachable struct {
	node string
	why  error
}

func (u unreachable) Error() string {
	return fmt.Sprintf("node %s is not on the same link: %v", u.node, u.why)
}

// routesTo returns a route to each pod range of another node, and the reasons for missing routes. mtu is the packet size in bytes that the path to the node
// carries, or 0 if the path carries the MTU of its device.
func routesTo(node *nodes.Node, mtu int, n *onlink.Network) (routes []desiredroutes.Route, problems []error) {
	for _, ipv6 := range []bool{false, true} {
		found, err := routesOf(node, ipv6, n)
		for i := range found {
			found[i].MTU = mtu
		}
		routes, problems = append(routes, found...), append(problems, err...)
	}
	return routes, problems
}

// routesOf returns the routes to one node in one address family.
func routesOf(node *nodes.Node, ipv6 bool, n *onlink.Network) (routes []desiredroutes.Route, problems []error) {
	hop := node.Address(ipv6)
	var device *devices.Device
	for _, p := range node.CIDRs {
		if p.Addr().Is6() != ipv6 {
			continue
		}
		if device == nil {
			var err error
			if !hop.IsValid() {
				err = fmt.Errorf("it has no address of the family of %s", p)
			} else {
				device, err = n.Device(hop)
			}
			if err != nil {
				return nil, []error{unreachable{node.Name, err}}
			}
		}
		if taken := n.Covers(p); taken != "" {
			problems = append(problems, fmt.Errorf("range %s of node %s lies in the subnet of %s", p, node.Name, taken))
			continue
		}
		routes = append(routes, desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: device.Name, Gw: hop})
	}
	return routes, problems
}
