package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

// damage is a change by another program. Both functions run in the node's namespaces.
type damage struct {
	what  string
	do    func() error
	whole func() (bool, error) // reports whether the change is repaired; a missing object is an error or false
}

// podRoute is the destination of the agent's IPv4 route.
var podRoute = netip.MustParsePrefix(podCIDR)

// announced returns changes for which the kernel sends a notification.
func announced(d driftNode) []damage {
	block := tc.Block(podlink.IngressBlock)
	return []damage{
		{"waggle_net has another MTU", changed(podlink.NetDevice, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }),
			is(podlink.NetDevice, func(l netlink.Link) bool { return l.Attrs().MTU != 1300 })},
		{"waggle_hold is deleted", changed(podlink.HoldDevice, netlink.LinkDel), is(podlink.HoldDevice, func(netlink.Link) bool { return true })},
		{"a pod's link is down", changed(d.podLink, netlink.LinkSetDown),
			is(d.podLink, func(l netlink.Link) bool { return l.Attrs().RawFlags&1 != 0 })}, // IFF_UP
		{"a pod's link has no clsact", func() error {
			return withClsact(d.podLink, func(h *tc.Handle, index int) error { return h.DeleteClsact(index) })
		},
			func() (found bool, err error) {
				err = withClsact(d.podLink, func(h *tc.Handle, index int) (err error) { _, found, err = h.Clsact(index); return err })
				return found, err
			}},
		{"the filter of pods is deleted", func() error { return withTC(func(h *tc.Handle) error { return h.DeleteFilter(block) }) },
			func() (found bool, err error) {
				err = withTC(func(h *tc.Handle) error {
					filters, err := h.Filters(block)
					found = len(filters) > 0 && filters[0].Ours()
					return err
				})
				return found, err
			}},
		{"an address of waggle_host is removed", changed(podlink.HostDevice, func(l netlink.Link) error {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err != nil || len(addrs) == 0 {
				return errors.Join(err, errors.New("it has no address"))
			}
			return netlink.AddrDel(l, &addrs[0])
		}), is(podlink.HostDevice, func(l netlink.Link) bool {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			return err == nil && len(addrs) > 0
		})},
		{"the route to pods is deleted", func() error {
			found, err := ownRoute(podRoute)
			if err != nil || found == nil {
				return errors.Join(err, fmt.Errorf("no route to %s", podRoute))
			}
			return netlink.RouteDel(found)
		}, func() (bool, error) { found, err := ownRoute(podRoute); return found != nil, err }},
		{"the nftables ruleset is flushed", func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.FlushRuleset()
			return conn.Flush()
		}, nftguard.Exists},
		{"forwarding is off", setting("ipv4/ip_forward", "0"), hasSetting("ipv4/ip_forward", "1")},
		{"the pin of a tcx link is removed", func() error { return os.Remove(d.pin("links", "waggle_host_egress")) }, exists(d.pin("links", "waggle_host_egress"))},
		{"the pin of a map is removed", func() error { return os.Remove(d.pin("maps", ipcachePin())) }, exists(d.pin("maps", ipcachePin()))},
	}
}

func ipcachePin() string { return bpf.PinName(bpf.MapIpcache, bpf.LayoutVersion(bpf.MapIpcache)) }

// silent returns changes without a notification.
func silent(d driftNode) []damage {
	key := bpf.NewAddrKey(d.pod.Addr(false))
	return []damage{
		{"a sysctl without events is changed", setting("ipv4/conf/waggle_host/accept_local", "0"), hasSetting("ipv4/conf/waggle_host/accept_local", "1")},
		{"the tcx link is detached", func() error {
			l, err := link.LoadPinnedLink(d.pin("links", "waggle_host_egress"), nil)
			if err != nil {
				return err
			}
			return errors.Join(l.Detach(), l.Close())
		}, func() (attached bool, err error) {
			host, err := netlink.LinkByName(podlink.HostDevice)
			if err != nil {
				return false, err
			}
			programs, err := link.QueryPrograms(link.QueryOptions{Target: host.Attrs().Index, Attach: ebpf.AttachTCXEgress})
			return err == nil && len(programs.Programs) > 0, err
		}},
		{"the endpoint's map entry is deleted", func() error { return d.endpoints.Delete(key) }, func() (bool, error) {
			var ref bpf.EndpointRef
			return d.endpoints.Lookup(key, &ref) == nil, nil
		}},
	}
}

func changed(name string, f func(netlink.Link) error) func() error {
	return func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return f(l)
	}
}

func is(name string, f func(netlink.Link) bool) func() (bool, error) {
	return func() (whole bool, err error) {
		err = changed(name, func(l netlink.Link) error { whole = f(l); return nil })()
		return whole, err
	}
}

func withTC(f func(*tc.Handle) error) error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	return f(handle)
}

func withClsact(device string, f func(h *tc.Handle, index int) error) error {
	return changed(device, func(l netlink.Link) error {
		return withTC(func(h *tc.Handle) error { return f(h, l.Attrs().Index) })
	})()
}

// ownRoute returns the agent's route to a prefix, or nil.
func ownRoute(to netip.Prefix) (*netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: desiredroutes.Protocol}, netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() == to.String() {
			return &r, nil
		}
	}
	return nil, err
}

func setting(name, value string) func() error {
	return func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }
}

func hasSetting(name, value string) func() (bool, error) {
	return func() (bool, error) {
		text, err := os.ReadFile("/proc/sys/net/" + name)
		return strings.TrimSpace(string(text)) == value, err
	}
}

func exists(path string) func() (bool, error) {
	return func() (bool, error) { _, err := os.Stat(path); return err == nil, err }
}
