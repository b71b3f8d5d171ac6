package basedevices

import (
	"net/netip"

	agent "github.com/waggle-net/waggle/pkg/settings"

	"github.com/waggle-net/waggle/pkg/podlink"
	tables "github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

const (
	linkScope = 253 // RT_SCOPE_LINK
)

// desiredDevices lists the pairs. The node is nil and the MTU is 0 while they are not known.
func desiredDevices(node *localnode.LocalNode, mtu int) []*tables.Device {
	host := &tables.Device{Name: podlink.HostDevice, Peer: podlink.NetDevice, Up: true, MTU: mtu}
	if node != nil {
		for _, f := range []localnode.Family{node.IPv4, node.IPv6} {
			for _, addr := range []netip.Addr{f.Router, f.Health} {
				if addr.IsValid() {
					host.Addresses = append(host.Addresses, netip.PrefixFrom(addr, addr.BitLen()))
				}
			}
		}
		host.AddressesKnown = node.Ready
	}
	return []*tables.Device{host, {Name: podlink.HoldDevice, Peer: podlink.HoldPeer, AddressesKnown: true}}
}

// desiredRoutes lead from the host's stack to the pods of this node: into waggle_host, whose program delivers.
func desiredRoutes(node *localnode.LocalNode) []desiredroutes.Route {
	var routes []desiredroutes.Route
	for _, f := range []localnode.Family{node.IPv4, node.IPv6} {
		if !f.AllocRange.IsValid() || !f.Router.IsValid() {
			continue
		}
		routes = append(routes, route(f.AllocRange.Masked(), f.Router))
	}
	return routes
}

// desiredPodRoutes lead to the pods whose address is outside the node's range: it has changed since they were attached.
// An endpoint in quarantine passes nothing, so it needs none.
func desiredPodRoutes(node *localnode.LocalNode, pods []*endpoints.Endpoint) []desiredroutes.Route {
	var routes []desiredroutes.Route
	add := func(f localnode.Family, pod netip.Addr) {
		if pod.IsValid() && f.Router.IsValid() && !f.AllocRange.Contains(pod) {
			r := route(netip.PrefixFrom(pod, pod.BitLen()), f.Router)
			r.Src = netip.Addr{} // the kernel would refuse the new router's address before the link has it
			routes = append(routes, r)
		}
	}
	for _, pod := range pods {
		if pod.Quarantine == "" {
			add(node.IPv4, pod.IPv4)
			add(node.IPv6, pod.IPv6)
		}
	}
	return routes
}

func route(dst netip.Prefix, router netip.Addr) desiredroutes.Route {
	r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: dst, Device: podlink.HostDevice, Src: router}
	if router.Is4() {
		r.Scope = linkScope
	}
	return r
}

// desiredSysctls are the settings of the network namespace without which packets of pods do not pass the stack.
func desiredSysctls(a agent.Agent) []sysctls.Setting {
	var all []sysctls.Setting
	if a.EnableIPv4 {
		all = append(all,
			sysctls.Setting{Name: "net/ipv4/ip_forward", Value: "1"},
			// The kernel applies the greater of "all" and the link's own; links of other people keep theirs.
			sysctls.Setting{Name: "net/ipv4/conf/all/rp_filter", Value: "0"},
		)
		for _, link := range []string{podlink.HostDevice, podlink.NetDevice} {
			dir := "net/ipv4/conf/" + link + "/"
			all = append(all,
				sysctls.Setting{Name: dir + "forwarding", Value: "1"},
				sysctls.Setting{Name: dir + "rp_filter", Value: "0"},
				// A packet of the host that is sent out at one end comes in at the other with a source of this node.
				sysctls.Setting{Name: dir + "accept_local", Value: "1"},
				sysctls.Setting{Name: dir + "send_redirects", Value: "0"},
			)
		}
	}
	if a.EnableIPv6 {
		all = append(all,
			sysctls.Setting{Name: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
			sysctls.Setting{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
		)
		for _, link := range []string{podlink.HostDevice, podlink.NetDevice} {
			dir := "net/ipv6/conf/" + link + "/"
			all = append(all,
				sysctls.Setting{Name: dir + "forwarding", Value: "1"},
				sysctls.Setting{Name: dir + "accept_dad", Value: "0"}, // nobody else is there
				sysctls.Setting{Name: dir + "accept_ra", Value: "0"},
			)
		}
	}
	return all
}
