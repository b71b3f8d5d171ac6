package kube

import (
	"fmt"
	"net/netip"
)

// Route makes the control plane, and through it other nodes, send packets for a range of pods to a node, as the router of
// a data centre would.
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

// ServerAddresses are those of the API server, one of each family.
func ServerAddresses() []string { return []string{apiIPv4, apiIPv6} }

// ServerPort is the port of the API server.
const ServerPort = securePort
