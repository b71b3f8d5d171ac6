package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedNodeAddresses_FollowTheKernel changes addresses of the uplink and adds an external device. Tables and maps of the running agent follow, and
// stale entries are removed.
func TestPrivilegedNodeAddresses_FollowTheKernel(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pid := node.AgentPID()
	old4, new4, new6 := nodekit.UplinkIPv4, netip.MustParsePrefix("192.0.2.77/32"), netip.MustParsePrefix("2001:db8::77/64")
	far4, far6 := netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8:7::1/64")
	index := 0
	for _, step := range []struct {
		name string
		do   func() error
		want map[string][]string // texts that a map contains, or with the prefix "!" must not contain
	}{
		{"initial addresses", func() error { return nil }, map[string][]string{
			"bpf_endpoints": {old4.Addr().String()}, "ipcache": {old4.Addr().String()}, "netdevs": {"ipv4=" + old4.Addr().String()},
			"ipcache_prefixes": {"identity=9", "identity=10"},
		}},
		{"addresses added", func() error { return errors.Join(addAddr("eth0", new4), addAddr("eth0", new6)) }, map[string][]string{
			"bpf_endpoints": {new4.Addr().String(), new6.Addr().String()}, "ipcache": {new4.Addr().String(), new6.Addr().String()},
			"netdevs": {"ipv4=" + old4.Addr().String()}, // Kubernetes knows the node by this address
		}},
		{"the old one removed", func() error { return errors.Join(delAddr("eth0", old4), defaultRoute("eth0")) }, map[string][]string{
			"bpf_endpoints": {"!" + old4.Addr().String()}, // ipcache still has it, as the Node object lists it as an address of this node
			"netdevs":       {"ipv4=" + new4.Addr().String()},
		}},
		{"a device added", func() (err error) { index, err = addDevice("wan0", far4, far6); return err }, map[string][]string{
			"bpf_endpoints": {far4.Addr().String(), far6.Addr().String()}, "ipcache": {far4.Addr().String(), far6.Addr().String()},
			"netdevs": {"ipv4=" + far4.Addr().String(), "ipv6=" + far6.Addr().String()},
		}},
		{"the device removed", func() error { return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index}}) }, map[string][]string{
			"bpf_endpoints": {"!" + far4.Addr().String(), "!" + far6.Addr().String()}, "ipcache": {"!" + far4.Addr().String()},
			"netdevs": {"!" + far4.Addr().String(), "ipv4=" + new4.Addr().String()},
		}},
	} {
		if err := node.Do(step.do); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		eventually(t, func() error { return inMaps(t, node, step.want) })
	}
	if node.AgentPID() != pid {
		t.Error("the agent is another process")
	}
}

// inMaps looks for texts in the kernel's maps.
func inMaps(t *testing.T, node *nodekit.Node, want map[string][]string) error {
	var errs []error
	for name, texts := range want {
		have, err := node.Waggle(t.Context(), "map", "get", name)
		if err != nil {
			return err
		}
		for _, text := range texts {
			text, absent := strings.CutPrefix(text, "!")
			if holds(have, text) == absent {
				errs = append(errs, fmt.Errorf("map %s: %q, absent=%t, in:\n%s", name, text, absent, have))
			}
		}
	}
	return errors.Join(errs...)
}

// holds reports whether a text contains an address as a whole: 192.0.2.1 is not in 192.0.2.10.
func holds(all, text string) bool {
	for rest := all; ; {
		_, after, found := strings.Cut(rest, text)
		if !found {
			return false
		}
		if after == "" || !strings.ContainsAny(after[:1], "0123456789abcdef:.") {
			return true
		}
		rest = after
	}
}

func addAddr(device string, prefix netip.Prefix) error {
	return changeAddr(device, prefix, netlink.AddrAdd)
}

func delAddr(device string, prefix netip.Prefix) error {
	return changeAddr(device, prefix, netlink.AddrDel)
}

func changeAddr(device string, prefix netip.Prefix, change func(netlink.Link, *netlink.Addr) error) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		return err
	}
	addr.Flags = 0x02 // IFA_F_NODAD: usable at once
	return change(link, addr)
}

// addDevice creates an external device and returns its index. One end of a veth pair is external when a default route uses it.
func addDevice(name string, addrs ...netip.Prefix) (int, error) {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}); err != nil {
		return 0, err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	errs := []error{netlink.LinkSetUp(link)}
	for _, a := range addrs {
		errs = append(errs, addAddr(name, a))
	}
	errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: addrs[0].Addr().Next().AsSlice(), Priority: 500,
		Flags: int(netlink.FLAG_ONLINK)}))
	return link.Attrs().Index, errors.Join(errs...)
}

// defaultRoute restores the default route that was deleted with the address. A veth without a default route is not an external device.
func defaultRoute(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: nodekit.OutsideIPv4.Addr().AsSlice(),
		Flags: int(netlink.FLAG_ONLINK)})
}

// defaultRouteIPv6 adds the IPv6 default route, which nodes of the kit do not have.
func defaultRouteIPv6(device string) error {
	return linkNamed(device, func(link netlink.Link) error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: nodekit.OutsideIPv6.Addr().AsSlice()})
	})
}
