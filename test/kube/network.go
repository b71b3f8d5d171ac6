package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The control plane's namespace has a bridge with these addresses. One end of each node's uplink is a port of the bridge.
const (
	bridgeName = "nodes"
	// bridgeMAC is fixed. A bridge without a MAC address of its own has the lowest one of its ports, and changes it when such a port is removed: packets of the other
	// nodes to the control plane are then lost until their neighbour entries are renewed.
	bridgeMAC  = "02:fe:00:00:00:01"
	apiIPv4    = "192.0.2.1"
	apiIPv6    = "2001:db8:2::1"
	uplinkName = "eth0"
)

// maxNodes is the maximum number of nodes that a control plane creates over its lifetime.
const maxNodes = 200

const nodePrefix = "node-"

func nodeName(index int) string { return fmt.Sprint(nodePrefix, index+1) }
func nodeIPv4(index int) string { return fmt.Sprintf("192.0.2.%d", index+11) }
func nodeIPv6(index int) string { return fmt.Sprintf("2001:db8:2::%d", index+11) }

// makeBridge sets up the control plane's namespace with forwarding enabled, as on a router between the nodes.
func (c *Cluster) makeBridge() (err error) {
	if c.control, err = newNetwork(); err != nil {
		return err
	}
	// Forwarding is disabled in a new namespace.
	if err := c.control.do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	}); err != nil {
		return err
	}
	return c.ip(c.control, `
		link set lo up
		link add `+bridgeName+` address `+bridgeMAC+` type bridge
		link set `+bridgeName+` up
		addr add `+apiIPv4+`/24 dev `+bridgeName+`
		addr add `+apiIPv6+`/64 dev `+bridgeName+` nodad`)
}

func portOf(n *Node) string { return "port-" + n.Name }

// disconnect removes a node's uplink unless the kernel has already removed it with the node's namespace.
func (c *Cluster) disconnect(n *Node) error {
	_, err := run(context.Background(), c.control, nil, "ip", "link", "delete", portOf(n))
	if err != nil && (strings.Contains(err.Error(), "Cannot find device") || strings.Contains(err.Error(), "No such device")) { // deleted since
		return nil
	}
	return err
}

// connect creates a node's uplink.
func (c *Cluster) connect(n *Node) error {
	port := portOf(n)
	if err := c.ip(c.control, fmt.Sprintf(`
		link add %[1]s type veth peer name %[2]s netns %[3]d
		link set %[1]s master %[4]s
		link set %[1]s up`, port, uplinkName, n.init.PID(), bridgeName)); err != nil {
		return err
	}
	return c.ip(n.netNS, fmt.Sprintf(`
		link set lo up
		addr add %[2]s/24 dev %[1]s
		addr add %[3]s/64 dev %[1]s nodad
		link set %[1]s up
		route add default via `+apiIPv4+`
		-6 route add default via `+apiIPv6, uplinkName, n.IPv4, n.IPv6))
}

// ip runs commands of ip(8), one a line.
func (c *Cluster) ip(at netNS, commands string) error {
	for line := range strings.Lines(commands) {
		if words := strings.Fields(line); len(words) > 0 {
			if _, err := run(context.Background(), at, nil, append([]string{"ip"}, words...)...); err != nil {
				return err
			}
		}
	}
	return nil
}
