package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/test/nodekit"
)

// oursState describes all state of the agent in the node's kernel except the contents of maps, one fact a line.
func oursState(node *nodekit.Node) (lines []string, err error) {
	err = node.Do(func() error {
		for _, part := range []func() ([]string, error){linkState, routeState, tcState, guardState, sysctlState} {
			more, err := part()
			if err != nil {
				return err
			}
			lines = append(lines, more...)
		}
		for _, dir := range []string{"maps", "links"} {
			pins, err := filepath.Glob(filepath.Join(node.BPFRoot(), "waggle", dir, "*"))
			if err != nil {
				return err
			}
			for _, p := range pins {
				lines = append(lines, "pin "+filepath.Base(p))
			}
		}
		return nil
	})
	slices.Sort(lines)
	return lines, err
}

func oursName(name string) bool {
	return strings.HasPrefix(name, "waggle_") || podlink.IsHostName(name)
}

func linkState() (lines []string, err error) {
	links, err := netlink.LinkList()
	for _, l := range links {
		a := l.Attrs()
		if !oursName(a.Name) {
			continue
		}
		lines = append(lines, fmt.Sprintf("link %s mtu %d group %#x up %v noarp %v", a.Name, a.MTU, a.Group,
			a.RawFlags&unix.IFF_UP != 0, a.RawFlags&unix.IFF_NOARP != 0))
		addrs, err2 := netlink.AddrList(l, netlink.FAMILY_ALL)
		err = errors.Join(err, err2)
		for _, addr := range addrs {
			if addr.Scope < unix.RT_SCOPE_LINK {
				lines = append(lines, "address "+addr.IPNet.String()+" on "+a.Name)
			}
		}
	}
	return lines, err
}

func routeState() (lines []string, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Protocol: desiredroutes.Protocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			lines = append(lines, fmt.Sprintf("route %s src %s", r.Dst, r.Src))
		}
	}
	return lines, nil
}

func tcState() (lines []string, err error) {
	handle, err := tc.Open()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	clsacts, err := handle.Clsacts()
	if err != nil {
		return nil, err
	}
	for index, blocks := range clsacts {
		if l, err := netlink.LinkByIndex(index); err == nil {
			lines = append(lines, fmt.Sprintf("clsact %s %+v", l.Attrs().Name, blocks))
		}
	}
	for _, block := range []uint32{podlink.IngressBlock, podlink.EgressBlock} {
		filters, err := handle.Filters(tc.Block(block))
		if err != nil {
			return nil, err
		}
		for _, f := range filters {
			if f.Ours() {
				lines = append(lines, fmt.Sprintf("filter %#x program %d", block, f.ProgramID))
			}
		}
	}
	host, err := netlink.LinkByName(podlink.HostDevice)
	if err != nil {
		return lines, nil //nolint:nilerr // a link that is missing is missing in the state
	}
	programs, err := link.QueryPrograms(link.QueryOptions{Target: host.Attrs().Index, Attach: ebpf.AttachTCXEgress})
	if err == nil && len(programs.Programs) > 0 {
		lines = append(lines, fmt.Sprintf("first program of waggle_host %d", programs.Programs[0].ID))
	}
	return lines, err
}

func guardState() ([]string, error) {
	state, err := nftguard.Read(guardRule)
	return []string{fmt.Sprintf("rule %v", state.Installed)}, err
}

func sysctlState() (lines []string, err error) {
	names := []string{"ipv4/ip_forward", "ipv4/conf/all/rp_filter", "ipv6/conf/all/forwarding", "ipv4/conf/waggle_host/accept_local",
		"ipv4/conf/waggle_net/send_redirects", "ipv4/conf/waggle_host/forwarding"}
	pods, err := filepath.Glob("/proc/sys/net/ipv4/conf/lxc*/rp_filter")
	for _, p := range pods {
		names = append(names, strings.TrimPrefix(p, "/proc/sys/net/"))
	}
	for _, name := range names {
		value, err := os.ReadFile("/proc/sys/net/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines = append(lines, "sysctl "+name+" "+strings.TrimSpace(string(value)))
	}
	return lines, err
}

// linkNamed finds a link and passes it to f.
func linkNamed(name string, f func(netlink.Link) error) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return f(l)
}

func setSysctl(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}

// flushLink removes all addresses and routes of a link, as network daemons do with unknown links.
func flushLink(l netlink.Link) error {
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		err = errors.Join(err, netlink.AddrDel(l, &a))
	}
	routes, err2 := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: l.Attrs().Index}, netlink.RT_FILTER_OIF)
	for _, r := range routes {
		if r.Protocol == desiredroutes.Protocol { // routes of the addresses are deleted already
			_ = netlink.RouteDel(&r)
		}
	}
	return errors.Join(err, err2)
}

func deleteRoute(dst netip.Prefix) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: desiredroutes.Protocol}, netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() == dst.String() {
			return netlink.RouteDel(&r)
		}
	}
	return errors.Join(err, fmt.Errorf("no route of ours leads to %s", dst))
}
