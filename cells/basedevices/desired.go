package basedevices

import (
	"net/netip"

	agent "github.com/waggle-net/waggle/pkg/settings"

	"github.com/waggle-net/waggle/pkg/podlink"
	tables "github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
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
			if f.Router.IsValid() {
				host.Addresses = append(host.Addresses, netip.PrefixFrom(f.Router, f.Router.BitLen()))
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
		r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: f.AllocRange.Masked(), Device: podlink.HostDevice, Src: f.Router}
		if f.Router.Is4() {
			r.Scope = linkScope
		}
		routes = append(routes, r)
	}
	return routes
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
