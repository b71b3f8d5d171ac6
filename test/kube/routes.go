package kube

import (
	"fmt"
	"net/netip"
)

// Route routes a range of pod addresses to a node on the control plane, which is the router between the nodes, as a data center router would.
func (c *Cluster) Route(cidr string, n *Node) error {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return err
	}
	family, via := "-4", n.IPv4
	if prefix.Addr().Is6() {
		family, via = "-6", n.IPv6
	}
	return c.ip(c.control, fmt.Sprintf("%s route replace %s via %s", family, prefix, via))
}

// ServerAddresses returns the API server's addresses, one per family.
func ServerAddresses() []string { return []string{apiIPv4, apiIPv6} }

// ServerPort is the port of the API server.
const ServerPort = securePort
