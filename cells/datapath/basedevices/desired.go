package basedevices

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

const (
	linkScope = 253 // RT_SCOPE_LINK
)

// desiredDevices returns the pairs. The node is nil and the MTU is 0 while they are unknown. routed reports whether the kernel has the routes to all pods
// outside the node's range.
func desiredDevices(node *localnode.LocalNode, mtu int, routed bool) []*desireddevices.Device {
	host := &desireddevices.Device{Name: podlink.HostDevice, Peer: podlink.NetDevice, Up: true, MTU: mtu}
	if node != nil {
		for _, f := range []localnode.Family{node.IPv4, node.IPv6} {
			for _, addr := range []netip.Addr{f.Router, f.Health} {
				if addr.IsValid() {
					host.Addresses = append(host.Addresses, netip.PrefixFrom(addr, addr.BitLen()))
				}
			}
		}
		// When an IPv4 address is removed, the kernel also removes the routes with this source address, such as routes to pods of a previous range.
		host.AddressesKnown = node.Ready && routed
	}
	return []*desireddevices.Device{host, {Name: podlink.HoldDevice, Peer: podlink.HoldPeer, AddressesKnown: true}}
}

// desiredRoutes returns the routes from the host's stack to the pods of this node, through waggle_host, whose program delivers the packets.
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

// outside has the routes to pods whose address is outside the node's range, by endpoint: the range has changed since they were attached. Most nodes have none.
type outside map[uint16][]desiredroutes.Route

// outsideOf computes the routes of all endpoints.
func outsideOf(node *localnode.LocalNode, pods iter.Seq[*endpoints.Endpoint]) outside {
	o := outside{}
	for pod := range pods {
		o.put(pod.ID, podRoutes(node, pod))
	}
	return o
}

// update computes the routes of changed endpoints, and reports whether a route has changed.
func (o outside) update(node *localnode.LocalNode, list []statedb.Change[*endpoints.Endpoint]) (altered bool) {
	for _, change := range list {
		var routes []desiredroutes.Route
		if !change.Deleted {
			routes = podRoutes(node, change.Object)
		}
		if !slices.Equal(routes, o[change.Object.ID]) {
			o.put(change.Object.ID, routes)
			altered = true
		}
	}
	return altered
}

func (o outside) put(id uint16, routes []desiredroutes.Route) {
	if len(routes) == 0 {
		delete(o, id)
		return
	}
	o[id] = routes
}

func (o outside) routes() (all []desiredroutes.Route) {
	for _, id := range slices.Sorted(maps.Keys(o)) {
		all = append(all, o[id]...)
	}
	return all
}

// podRoutes returns the routes to a pod whose addresses are outside the node's range. An endpoint in quarantine passes no traffic, so it has no routes.
func podRoutes(node *localnode.LocalNode, pod *endpoints.Endpoint) (routes []desiredroutes.Route) {
	if node == nil || pod.Quarantine != "" {
		return nil
	}
	add := func(f localnode.Family, addr netip.Addr) {
		if addr.IsValid() && f.Router.IsValid() && !f.AllocRange.Contains(addr) {
			r := route(netip.PrefixFrom(addr, addr.BitLen()), f.Router)
			r.Src = netip.Addr{} // the kernel rejects the new router address before the link has it
			routes = append(routes, r)
		}
	}
	add(node.IPv4, pod.IPv4)
	add(node.IPv6, pod.IPv6)
	return routes
}

func route(dst netip.Prefix, router netip.Addr) desiredroutes.Route {
	r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: dst, Device: podlink.HostDevice, Src: router}
	if router.Is4() {
		r.Scope = linkScope
	}
	return r
}

// withMetric sets the metric of routes in place, and returns them.
func withMetric(routes []desiredroutes.Route, metric int) []desiredroutes.Route {
	for i := range routes {
		routes[i].Metric = metric
	}
	return routes
}

// desiredSysctls returns the settings of the network namespace without which packets of pods do not pass the stack.
func desiredSysctls(a agentconfig.Agent) []sysctls.Setting {
	var all []sysctls.Setting
	if a.EnableIPv4 {
		all = append(all,
			sysctls.Setting{Name: "net/ipv4/ip_forward", Value: "1"},
			// The kernel applies the maximum of "all" and the link's own value; foreign links keep their values.
			sysctls.Setting{Name: "net/ipv4/conf/all/rp_filter", Value: "0"},
		)
		for _, link := range []string{podlink.HostDevice, podlink.NetDevice} {
			dir := "net/ipv4/conf/" + link + "/"
			all = append(all,
				sysctls.Setting{Name: dir + "forwarding", Value: "1"},
				sysctls.Setting{Name: dir + "rp_filter", Value: "0"},
				// A packet of the host that leaves at one end arrives at the other with a source address of this node.
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
				sysctls.Setting{Name: dir + "accept_dad", Value: "0"}, // no other host is on this link
				sysctls.Setting{Name: dir + "accept_ra", Value: "0"},
			)
		}
	}
	return all
}
