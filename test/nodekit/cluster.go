package nodekit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// bridge is the name of the cluster's underlay bridge in the namespace outside.
const bridge = "underlay"

// bridgeMAC is the MAC address of the bridge. Without one, a bridge has the lowest MAC address of its ports, and changes it when such a port is removed: packets of
// the other nodes to the host outside are then lost until their neighbour entries are renewed.
var bridgeMAC = net.HardwareAddr{2, 0xfe, 0, 0, 0, 1}

// Cluster is a set of nodes with a common underlay: a bridge in a separate namespace, to which eth0 of each node is connected. That namespace is also the
// host outside of all nodes, see [Node.Outside], with the addresses OutsideIPv4 and OutsideIPv6, which are the gateways of the default routes. Each node has
// its own agent, mounts, cgroup and pod ranges, and manifests of all Node objects. No node has a route to the pods of another.
type Cluster struct {
	Nodes   []*Node
	outside namespaces
	joined  bool // no bridge: eth0 of both nodes are the ends of one veth pair
}

// member identifies a node of a cluster.
type member struct {
	cluster *Cluster
	number  int // starts at 1
}

// NewCluster creates nodes node-1, node-2 and so on with options, which must not set pod ranges. Node i has the pod ranges 10.244.i.0/24 and
// fd00:10:244:i::/64, and the i-th addresses from UplinkIPv4 and UplinkIPv6 on. NewCluster does not start the agents.
func NewCluster(options Options, nodes int) (*Cluster, error) {
	return newCluster(&Cluster{}, options, nodes)
}

// NewPair creates two nodes as [NewCluster] does, but eth0 of one is the peer of eth0 of the other, so that benchmarks between nodes do not include a bridge.
// The gateway of their default routes does not exist.
func NewPair(options Options) (*Cluster, error) {
	return newCluster(&Cluster{joined: true}, options, 2)
}

func newCluster(c *Cluster, options Options, nodes int) (_ *Cluster, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.outside, err = newNamespaces(); err != nil {
		return nil, err
	}
	if err := c.outside.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge, HardwareAddr: bridgeMAC}}); err != nil {
			return fmt.Errorf("add bridge %s: %w", bridge, err)
		}
		return linkUp(bridge, OutsideIPv4, OutsideIPv6)
	}); err != nil {
		return nil, err
	}
	for i := 1; i <= nodes; i++ {
		own := options
		own.member = &member{c, i}
		own.IPv4CIDR, own.IPv6CIDR = fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:10:244:%x::/64", i)
		own.AgentArgs = append([]string{"--node-name", own.member.name()}, options.AgentArgs...)
		n, err := New(own)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", own.member.name(), err)
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c, c.writeManifests()
}

// writeManifests writes the Node objects of the other nodes on each node.
func (c *Cluster) writeManifests() error {
	for _, n := range c.Nodes {
		for _, other := range c.Nodes {
			if other == n {
				continue
			}
			if err := n.WriteManifest(other.name+".yaml", other.nodeManifest()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Forget deletes the Node object of a node on all other nodes. The node itself does not change.
func (c *Cluster) Forget(gone *Node) (err error) {
	for _, n := range c.Nodes {
		if n != gone {
			err = errors.Join(err, os.Remove(filepath.Join(n.ManifestsDir(), gone.name+".yaml")))
		}
	}
	return err
}

// Close stops the agents and removes all resources.
func (c *Cluster) Close() (err error) {
	for _, n := range c.Nodes {
		err = errors.Join(err, n.Close())
	}
	if c.outside.net != nil {
		err = errors.Join(err, c.outside.Close())
	}
	return err
}

func (m *member) name() string { return fmt.Sprintf("node-%d", m.number) }

// join makes the node a member of its cluster.
func (n *Node) join(m *member) {
	n.name, n.outside = m.name(), m.cluster.outside
	n.uplinks = nil
	for _, first := range []netip.Prefix{UplinkIPv4, UplinkIPv6} {
		addr := first.Addr()
		for range m.number - 1 {
			addr = addr.Next()
		}
		n.uplinks = append(n.uplinks, netip.PrefixFrom(addr, first.Bits()))
	}
}

// plugIn connects eth0 with the other nodes of its cluster.
func (n *Node) plugIn() error {
	connect := n.plugIntoBridge
	if n.options.member.cluster.joined {
		connect = n.joinPeer
	}
	if err := connect(); err != nil {
		return err
	}
	return n.Do(func() error { return address("eth0", OutsideIPv4, n.uplinks...) })
}

// spareEnd is the name of the veth end that is outside until the second node is created.
const spareEnd = "spare"

// joinPeer creates a veth pair for the first node of a pair; the second node takes the other end.
func (n *Node) joinPeer() error {
	if n.options.member.number == 1 {
		return n.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: spareEnd,
				PeerNamespace: netlink.NsFd(int(n.outside.net.Fd()))})
		})
	}
	if err := n.Outside(func() error {
		end, err := netlink.LinkByName(spareEnd)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(end, int(n.ns.net.Fd()))
	}); err != nil {
		return err
	}
	return n.Do(func() error {
		end, err := netlink.LinkByName(spareEnd)
		if err != nil {
			return err
		}
		return netlink.LinkSetName(end, "eth0")
	})
}

// plugIntoBridge connects eth0 with the bridge. The bridge port has the name of the node.
func (n *Node) plugIntoBridge() error {
	if err := n.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: n.name,
			PeerNamespace: netlink.NsFd(int(n.outside.net.Fd()))})
	}); err != nil {
		return err
	}
	return n.Outside(func() error {
		port, err := netlink.LinkByName(n.name)
		if err != nil {
			return err
		}
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(port, master); err != nil {
			return fmt.Errorf("connect %s with bridge %s: %w", n.name, bridge, err)
		}
		return netlink.LinkSetUp(port)
	})
}

// Name returns the name of the Node object.
func (n *Node) Name() string { return n.name }

// UplinkAddr returns the address of the node's uplink in a family.
func (n *Node) UplinkAddr(ipv6 bool) netip.Addr {
	if ipv6 {
		return n.uplinks[1].Addr()
	}
	return n.uplinks[0].Addr()
}
