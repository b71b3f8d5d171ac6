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

// network is what the main routing table says, without our own routes.
type network struct {
	routes  bart.Table[*devices.Route]
	devices map[int]string // names by index
}

// read makes a network of the rows of the kernel.
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

// device names the device by which an address is reached without a gateway.
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

// covers names the device in whose network a range lies, "" when it lies in none.
func (n *network) covers(p netip.Prefix) string {
	r, found := n.routes.LookupPrefix(p)
	if !found || r.Gw.IsValid() {
		return ""
	}
	return n.devices[r.LinkIndex]
}

// unreachable is a node on another link.
type unreachable struct {
	node string
	why  error
}

func (u unreachable) Error() string {
	return fmt.Sprintf("node %s is not on the same link: %v", u.node, u.why)
}

// routesTo wants a route to each range of the pods of other nodes.
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

// routesOf wants the routes of one family.
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
			problems = append(problems, fmt.Errorf("range %s of node %s lies in the network of %s", p, node.Name, taken))
			continue
		}
		routes = append(routes, desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p, Device: device, Gw: hop})
	}
	return routes, problems
}
