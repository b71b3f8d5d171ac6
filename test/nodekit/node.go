// Package nodekit creates complete nodes for tests, the demonstration and benchmarks: private network and mount namespaces, an uplink to a host outside, the
// real agent, and pods that the real plugin attaches as for a container runtime. A node is isolated, so several can run concurrently.
package nodekit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// Options configures a node. The default is dual-stack with 254 pod addresses.
type Options struct {
	BinDir    string    // holds waggle-agent, waggle-cni and waggle
	IPv4CIDR  string    // pods' range; "" means 10.244.1.0/24, "-" none
	IPv6CIDR  string    // pods' range; "" means fd00:10:244:1::/64, "-" none
	AgentArgs []string  // further flags of the agent
	Output    io.Writer // of the agent; nil keeps it in a file, see [Node.AgentLog]
	Tunnel    bool      // the uplink has no link header
	Reduced   bool      // the agent has only the privileges of the DaemonSet's container, see [Node.reduce]

	member *member // of a cluster; nil for a node with its own host outside
}

// Addresses of the uplink.
var (
	UplinkIPv4  = netip.MustParsePrefix("192.0.2.10/24")
	UplinkIPv6  = netip.MustParsePrefix("2001:db8:2::10/64")
	OutsideIPv4 = netip.MustParsePrefix("192.0.2.1/24")
	OutsideIPv6 = netip.MustParsePrefix("2001:db8:2::1/64")
)

// Node is the network part of one machine.
type Node struct {
	Dir     string // contains all files of the node
	options Options
	ns      namespaces
	outside namespaces
	agent   *process

	name    string
	uplinks []netip.Prefix // addresses of eth0, of IPv4 and IPv6

	leaveTunnel func() error // removes the uplink if it is a tunnel

	agentPath string // of another build than in BinDir, see [Node.UseAgent]
}

// New creates the namespaces, the uplink and the manifest of the Node object. It does not start the agent.
func New(options Options) (_ *Node, err error) {
	bins, err := filepath.Abs(options.BinDir)
	if err != nil {
		return nil, err
	}
	options.BinDir = bins
	dir, err := os.MkdirTemp("", "waggle-node-")
	if err != nil {
		return nil, err
	}
	n := &Node{Dir: dir, options: options, name: "node-1", uplinks: []netip.Prefix{UplinkIPv4, UplinkIPv6}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.ns, err = newNamespaces(); err != nil {
		return nil, err
	}
	// The agent attaches its socket programs to this cgroup, so that they translate only sockets of the node and of its pods.
	if n.ns.group, err = testnet.MakeCgroup(os.Getenv(groupEnv), groupPrefix); err != nil {
		return nil, err
	}
	if options.member != nil {
		n.join(options.member)
	} else if n.outside, err = newNamespaces(); err != nil {
		return nil, err
	}
	if err := n.connectUplink(); err != nil {
		return nil, fmt.Errorf("connect the uplink: %w", err)
	}
	return n, n.writeNodeManifest()
}

// Do runs f inside the node's namespaces.
func (n *Node) Do(f func() error) error { return n.ns.Do(f) }

// Outside runs f on the host at the other end of the uplink.
func (n *Node) Outside(f func() error) error { return n.outside.Do(f) }

func (n *Node) path(elem ...string) string {
	return filepath.Join(append([]string{n.Dir}, elem...)...)
}

// StateDir, ManifestsDir and BPFRoot return the folders of the node's agent.
func (n *Node) StateDir() string     { return n.path("run") }
func (n *Node) ManifestsDir() string { return n.path("manifests") }
func (n *Node) BPFRoot() string      { return n.path("bpf") }

func (n *Node) connectUplink() error {
	if n.options.member != nil {
		return n.plugIn()
	}
	add := n.addPair
	if n.options.Tunnel {
		add = n.addTunnel
	}
	if err := add("eth0"); err != nil {
		return err
	}
	if err := n.Do(func() error { return address("eth0", OutsideIPv4, n.uplinks...) }); err != nil {
		return err
	}
	return n.Outside(func() error { return address("eth0", UplinkIPv4, OutsideIPv4, OutsideIPv6) })
}

// addPair connects the node with the host outside by devices with one name.
func (n *Node) addPair(name string) error {
	return n.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name,
			PeerNamespace: netlink.NsFd(int(n.outside.net.Fd()))})
	})
}

// addTunnel connects the node with the host outside by devices without a link header.
func (n *Node) addTunnel(name string) error {
	var ends [2]*os.File
	open := func(end **os.File) func() error {
		return func() (err error) {
			*end, err = testnet.TUN(name, 0)
			return err
		}
	}
	if err := n.Do(open(&ends[0])); err != nil {
		return err
	}
	if err := n.Outside(open(&ends[1])); err != nil {
		return errors.Join(err, ends[0].Close())
	}
	n.leaveTunnel = testnet.JoinTUNs(ends[0], ends[1])
	return nil
}

// AddUplink adds another connection to the host outside, by devices with one name. It adds a default route with a lower preference than the first uplink's,
// because the agent ignores a veth device without a default route as an uplink. Both ends have permanent neighbour entries: the kernel retries a neighbour
// solicitation only after a second if the first one is sent before the other end is up.
func (n *Node) AddUplink(name string, here, there []netip.Prefix) error {
	if err := n.addPair(name); err != nil {
		return err
	}
	var inside, outside net.HardwareAddr
	up := func(mac *net.HardwareAddr, addrs []netip.Prefix) func() error {
		return func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			*mac = link.Attrs().HardwareAddr
			return linkUp(name, addrs...)
		}
	}
	know := func(mac net.HardwareAddr, addrs []netip.Prefix) error {
		link, err := netlink.LinkByName(name)
		for _, a := range addrs {
			if err == nil {
				err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.Addr().AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
			}
		}
		return err
	}
	if err := n.Outside(up(&outside, there)); err != nil {
		return err
	}
	if err := n.Do(func() error {
		if err := up(&inside, here)(); err != nil {
			return err
		}
		if err := know(outside, there); err != nil {
			return err
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: there[0].Addr().AsSlice(), Priority: 500})
	}); err != nil {
		return err
	}
	return n.Outside(func() error { return know(inside, here) })
}

// address adds addresses to a link, sets it up and, for the gateway's family, adds a default route.
func address(name string, gateway netip.Prefix, addrs ...netip.Prefix) error {
	if err := linkUp(name, addrs...); err != nil {
		return err
	}
	return defaultRoute(name, gateway.Addr())
}

// linkUp adds addresses to a link and sets it up.
func linkUp(name string, addrs ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		parsed, err := netlink.ParseAddr(a.String())
		if err != nil {
			return err
		}
		parsed.Flags = 0x02 // IFA_F_NODAD: usable immediately
		if err := netlink.AddrAdd(link, parsed); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, name, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func defaultRoute(name string, gateway netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()})
}

func (n *Node) writeNodeManifest() error {
	if err := os.MkdirAll(n.ManifestsDir(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.ManifestsDir(), "node.yaml"), []byte(n.nodeManifest()), 0o644)
}

// PodRanges returns the ranges of the node's pods in its Node object.
func (n *Node) PodRanges() (cidrs []string) {
	for _, c := range []struct{ chosen, standard string }{
		{n.options.IPv4CIDR, "10.244.1.0/24"}, {n.options.IPv6CIDR, "fd00:10:244:1::/64"}} {
		switch c.chosen {
		case "-":
		case "":
			cidrs = append(cidrs, c.standard)
		default:
			cidrs = append(cidrs, c.chosen)
		}
	}
	return cidrs
}

// nodeManifest returns the Node object.
func (n *Node) nodeManifest() string {
	cidrs := n.PodRanges()
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata:\n  name: %s\nspec:\n  podCIDR: %s\n  podCIDRs: [%s]\n"+
		"status:\n  addresses:\n  - {type: InternalIP, address: %s}\n  - {type: InternalIP, address: \"%s\"}\n",
		n.name, cidrs[0], strings.Join(cidrs, ", "), n.uplinks[0].Addr(), n.uplinks[1].Addr())
}

// Close stops the agent and removes all resources.
func (n *Node) Close() error {
	var err error
	if n.agent != nil {
		err = n.StopAgent(context.Background())
	}
	for _, ns := range []namespaces{n.ns, n.outside} {
		if n.options.member != nil && ns == n.outside {
			continue // the cluster closes it
		}
		if ns.net != nil {
			err = errors.Join(err, ns.Close())
		}
	}
	if n.ns.group != nil {
		err = errors.Join(err, n.ns.group.Close())
	}
	if n.leaveTunnel != nil {
		err = errors.Join(err, n.leaveTunnel())
	}
	return errors.Join(err, os.RemoveAll(n.Dir))
}

// Cgroup returns the path of the node's control group. It contains all processes of [Node.Do] and [Pod.Do], and owns their sockets.
func (n *Node) Cgroup() string { return n.ns.group.Path }

// netNS is a pair of namespaces as an end of traffic.
type netNS struct{ ns namespaces }

func (p netNS) Do(f func() error) error { return p.ns.Do(f) }

// Host returns the node itself as an end of traffic.
func (n *Node) Host() NetNS { return netNS{n.ns} }

// OutsideHost returns the host at the other end of the uplink.
func (n *Node) OutsideHost() NetNS { return netNS{n.outside} }

// RouteFromOutside adds a route on the host outside for each prefix, with the node as the gateway.
func (n *Node) RouteFromOutside(prefixes ...string) error {
	return n.Outside(func() error {
		for _, p := range prefixes {
			prefix, err := netip.ParsePrefix(p)
			if err != nil {
				return err
			}
			dst := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
			gateway := n.UplinkAddr(prefix.Addr().Is6())
			if err := netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: gateway.AsSlice()}); err != nil {
				return fmt.Errorf("route %s by way of the node: %w", p, err)
			}
		}
		return nil
	})
}
