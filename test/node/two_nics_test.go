package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// private holds the addresses of the first node's second NIC; other nodes have the following ones.
var private = map[bool]netip.Prefix{false: netip.MustParsePrefix("198.51.100.10/24"), true: netip.MustParsePrefix("2001:db8:7::10/64")}

// privateAddr returns the address of the second NIC of a node, counted from 0.
func privateAddr(node int, ipv6 bool) netip.Prefix {
	addr := private[ipv6].Addr()
	for range node {
		addr = addr.Next()
	}
	return netip.PrefixFrom(addr, private[ipv6].Bits())
}

// secondNICs connects the nodes of a cluster by eth1 to a bridge of their own, which has no host outside.
func secondNICs(t *testing.T, c *nodekit.Cluster) {
	t.Helper()
	const bridge = "private"
	if err := c.Nodes[0].Outside(func() error {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
		return errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link))
	}); err != nil {
		t.Fatal(err)
	}
	for i, n := range c.Nodes {
		var ns *os.File
		err := n.Do(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err })
		if err != nil {
			t.Fatal(err)
		}
		port := n.Name() + "-1"
		err = errors.Join(
			n.Outside(func() error {
				if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: "eth1", PeerNamespace: netlink.NsFd(int(ns.Fd()))}); err != nil {
					return err
				}
				return linkNamed(port, func(link netlink.Link) error {
					return linkNamed(bridge, func(master netlink.Link) error {
						return errors.Join(netlink.LinkSetMaster(link, master), netlink.LinkSetUp(link))
					})
				})
			}),
			n.Do(func() error {
				return errors.Join(addAddr("eth1", privateAddr(i, false)), addAddr("eth1", privateAddr(i, true)), linkNamed("eth1", netlink.LinkSetUp))
			}), ns.Close())
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The default route of each node uses one NIC, its InternalIP is on another one, and both NICs have strict reverse path filters. Pods of different nodes use
// the second NIC, and leave the cluster by the first one, under its address. With the tunnel the second NIC is not one of the selected devices: like a bridge,
// a veth without a default route is not detected.
func TestPrivilegedTwoNICs_InternalIPBesideTheDefaultRoute(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"tunnel": {"--routing-mode=tunnel", "--prometheus-serve-addr", metricsAddress}, "native": {"--routing-mode=native", "--auto-direct-node-routes", "--devices=eth+"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, all := newKubeCluster(t, 2, args...)
			secondNICs(t, c)
			for i, n := range all {
				n.putNode(privateAddr(i, false).Addr(), privateAddr(i, true).Addr())
				if err := n.Do(func() error {
					var errs []error
					for _, device := range []string{"all", "default", "eth0", "eth1"} {
						errs = append(errs, setSysctl("ipv4/conf/"+device+"/rp_filter", "1"))
					}
					return errors.Join(errs...)
				}); err != nil {
					t.Fatal(err)
				}
			}
			startAgents(t, c)
			w := &twoNICs{all: all, pods: map[*nodekit.Node]*nodekit.Pod{}, tunnel: name == "tunnel", second: privateAddr(1, false).Addr()}
			for _, n := range all {
				w.pods[n.Node] = n.startPod(t, "pod-"+n.Name(), map[string]string{"app": "pod"})
			}
			serveName(t, all[0].OutsideHost(), "outside", 9000)
			w.reach(t)
			t.Run("the addresses of the second NIC change", w.readdress)
			t.Run("a virtual address is added", w.virtualAddress)
			if w.tunnel {
				t.Run("the NIC of the tunnel has virtual addresses", w.virtualUnderlay)
			}
			t.Run("the node boots while the API server is unreachable", w.reboot)
		})
	}
}

type twoNICs struct {
	all    []kubeNode
	pods   map[*nodekit.Node]*nodekit.Pod
	tunnel bool
	second netip.Addr // IPv4 address of the second node's second NIC
}

// reach requires pods to reach pods of the other node by the second NIC, and the outside by the first one.
func (w *twoNICs) reach(t *testing.T) {
	t.Helper()
	one, two := w.all[0].Node, w.all[1].Node
	for _, n := range w.all {
		eventually(t, func() error { return routesTo(t, n.Node, 2) })
	}
	for _, family := range families { // the other node may not have all updates yet
		eventually(t, func() error {
			return errors.Join(nodekit.PingBriefly(w.pods[one], w.pods[two].Addr(family.ipv6), 56), nodekit.PingBriefly(two.Host(), w.pods[one].Addr(family.ipv6), 56))
		})
	}
	reachBetween(t, one, two, w.pods)
	reachBetween(t, two, one, w.pods)
	for _, n := range w.all {
		for _, family := range families {
			outside := netip.AddrPortFrom(outsideAddr(family.ipv6), 9000)
			if err := checkSource(answerTimeout, dial(t, w.pods[n.Node], "udp", outside), n.UplinkAddr(family.ipv6)); err != nil {
				t.Errorf("%s: the outside sees a pod of %s as %v", family.name, n.Name(), err)
			}
		}
	}
	for _, family := range families {
		from, to := w.pods[one].Addr(family.ipv6), w.pods[two].Addr(family.ipv6)
		frames, err := nodekit.Capture(two.Host(), "eth1", func() error { return nodekit.Ping(w.pods[one], to, 56) })
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(w.packets(frames), func(p gopacket.Packet) bool { return isBetween(p, from, to) }) {
			t.Errorf("%s: of the ping from %s to %s nothing came by the second NIC: %v", family.name, from, to, decoded(frames))
		}
	}
}

// packets decodes frames that the second NIC of the second node has received. With the tunnel, it returns the inner packets that the first node has
// encapsulated between the addresses of second NICs.
func (w *twoNICs) packets(frames [][]byte) (all []gopacket.Packet) {
	if !w.tunnel {
		return decoded(frames)
	}
	for _, o := range outers(frames) {
		if o.from == privateAddr(0, false).Addr() && o.to == w.second {
			all = append(all, o.inner)
		}
	}
	return all
}

// isBetween reports whether a packet has these addresses.
func isBetween(p gopacket.Packet, from, to netip.Addr) bool {
	ip := p.NetworkLayer()
	return ip != nil && bytes.Equal(ip.NetworkFlow().Src().Raw(), from.AsSlice()) && bytes.Equal(ip.NetworkFlow().Dst().Raw(), to.AsSlice())
}

// readdress gives the second NIC of the second node other addresses, and writes them to its Node object.
func (w *twoNICs) readdress(t *testing.T) {
	n := w.all[1]
	now := map[bool]netip.Prefix{false: netip.MustParsePrefix("198.51.100.77/24"), true: netip.MustParsePrefix("2001:db8:7::77/64")}
	for _, family := range families {
		if err := n.Do(func() error {
			return errors.Join(delAddr("eth1", privateAddr(1, family.ipv6)), addAddr("eth1", now[family.ipv6]))
		}); err != nil {
			t.Fatal(err)
		}
	}
	n.putNode(now[false].Addr(), now[true].Addr())
	w.second = now[false].Addr()
	for _, n := range w.all {
		n.awaitRow(t, "nodes", now[false].Addr().String())
		n.awaitRow(t, "nodes", now[true].Addr().String())
	}
	w.reach(t)
}

// virtualAddress adds an address to the first NIC of the second node, as keepalived does.
func (w *twoNICs) virtualAddress(t *testing.T) {
	one, two := w.all[0].Node, w.all[1].Node
	virtual := map[bool]netip.Prefix{false: netip.MustParsePrefix("192.0.2.200/32"), true: netip.MustParsePrefix("2001:db8:2::200/128")}
	for _, family := range families {
		if err := two.Do(func() error { return addAddr("eth0", virtual[family.ipv6]) }); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			return inMaps(t, two, map[string][]string{"bpf_endpoints": {virtual[family.ipv6].Addr().String()}})
		})
	}
	w.reach(t)
	for _, family := range families {
		addr := virtual[family.ipv6].Addr()
		for from, place := range map[string]nodekit.NetNS{"a pod of the other node": w.pods[one], "a pod of the node": w.pods[two], "the outside": one.OutsideHost()} {
			if err := errors.Join(nodekit.Ping(place, addr, 56), nodekit.TCP(place, two.Host(), addr, 1<<16)); err != nil {
				t.Errorf("%s: %s to the virtual address: %v", family.name, from, err)
			}
		}
	}
}

// virtualUnderlay adds virtual addresses to the second NICs. The kernel of the first node prefers its one as a source, but the tunnel keeps the published address.
// Frames of the tunnel from or to a virtual address, and frames of a host that is no node, are dropped and counted, although the NIC is not a selected device.
func (w *twoNICs) virtualUnderlay(t *testing.T) {
	one, two := w.all[0].Node, w.all[1].Node
	virtual := []netip.Prefix{netip.MustParsePrefix("198.51.100.200/32"), netip.MustParsePrefix("198.51.100.201/32")}
	for i, n := range []*nodekit.Node{one, two} {
		if err := n.Do(func() error { return addAddr("eth1", virtual[i]) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.Do(func() error {
		return linkNamed("eth1", func(link netlink.Link) error {
			to := private[false].Masked()
			dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}
			err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Src: virtual[0].Addr().AsSlice(), Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_KERNEL})
			if err != nil {
				return err
			}
			routes, err := netlink.RouteGet(w.second.AsSlice())
			if err == nil && (len(routes) != 1 || !routes[0].Src.Equal(virtual[0].Addr().AsSlice())) {
				err = fmt.Errorf("the source of packets to %s is not %s: %v", w.second, virtual[0].Addr(), routes)
			}
			return err
		})
	}); err != nil {
		t.Fatal(err)
	}
	w.reach(t)
	foreign := netip.MustParsePrefix("198.51.100.99/24")
	if err := one.Outside(func() error { return addAddr("private", foreign) }); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := one.Outside(func() error { return delAddr("private", foreign) }); err != nil {
			t.Error(err)
		}
	}()
	source, target := w.pods[one].Addr(false), w.pods[two].Addr(false)
	heard := nodekit.Listen(t, w.pods[two], target, 2222)
	for name, c := range map[string]struct {
		from   nodekit.NetNS
		to     netip.Addr
		reason string
	}{
		"from no node":                      {one.OutsideHost(), w.second, "No node ID found"},
		"from no node to a virtual address": {one.OutsideHost(), virtual[1].Addr(), "Error retrieving tunnel key"},
		"from a virtual address of a node":  {one.Host(), w.second, "No node ID found"},
	} {
		t.Run(name, func(t *testing.T) {
			series := fmt.Sprintf(`waggle_datapath_packets_total{direction="ingress",reason=%q}`, c.reason)
			before, err := scrape(two)
			if err != nil {
				t.Fatal(err)
			}
			sendVXLAN(t, c.from, c.to, 5, source, target)
			eventually(t, func() error {
				after, err := scrape(two)
				if err == nil && after[series] != before[series]+1 {
					err = fmt.Errorf("%s went from %v to %v", series, before[series], after[series])
				}
				return err
			})
		})
	}
	select {
	case from := <-heard:
		t.Errorf("a datagram from %s arrived", from)
	default:
	}
}

// reboot stops the agent, which writes its copy of the objects, removes all state from the first node that does not survive a boot, and starts its agent while
// its API server is unavailable.
func (w *twoNICs) reboot(t *testing.T) {
	n := w.all[0]
	n.server.Stop()
	if err := errors.Join(n.StopAgent(t.Context()), w.pods[n.Node].Close(), forgetBoot(n.Node)); err != nil {
		t.Fatal(err)
	}
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n.Node)
	n.allFrom(t, "snapshot")
	w.pods[n.Node] = addPod(t, n.Node, "pod-"+n.Name())
	w.reach(t)
}

// forgetBoot removes the agent's state from a node's kernel and tmpfs. The agent must have ended.
func forgetBoot(n *nodekit.Node) error {
	return n.Do(func() error {
		var err error
		for _, name := range []string{podlink.HostDevice, podlink.HoldDevice, podlink.OverlayDevice} { // links of pods are deleted with their namespaces
			if e := linkNamed(name, netlink.LinkDel); !errors.As(e, new(netlink.LinkNotFoundError)) {
				err = errors.Join(err, e)
			}
		}
		err = errors.Join(err, nftguard.Delete(), unix.Unmount(n.BPFRoot(), unix.MNT_DETACH), os.RemoveAll(n.StateDir()))
		for _, setting := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			err = errors.Join(err, setSysctl(setting, "0"))
		}
		if err != nil {
			return fmt.Errorf("forget the boot: %w", err)
		}
		return nil
	})
}
