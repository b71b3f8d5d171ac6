package synchostips

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// owner names this cell's contributions.
	owner = ipcache.OwnerHost
	// interval is the maximum time between two contributions, even without a change: it retries an address that an endpoint
	// blocked.
	interval = time.Minute
	// pause is the minimum time between two contributions; the first after a pause does not wait.
	pause = 20 * time.Millisecond
)

type controller struct {
	cell.In
	DB        *statedb.DB
	Agent     agentconfig.Agent
	Addresses statedb.Table[nodeaddresses.Address]
	Routes    statedb.Table[*devices.Route]
	LocalNode statedb.Table[*localnode.LocalNode]
	Hosts     bpfendpoints.HostWriter
	IPCache   ipcache.Writer
}

func registerController(jobs job.Group, c controller) {
	watchdog.Add(jobs, "sync-host-ips", c.run)
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	// Only some types of routes are watched: changes of other routes do not begin a round.
	options := loop.Options{Tables: []statedb.TableMeta{c.Addresses, c.LocalNode}, Pause: pause, Interval: interval}
	return loop.Run(ctx, c.DB, options, func(r *loop.Round) error {
		addrs, nodes, taken := loop.All(r, c.Addresses), loop.All(r, c.LocalNode), takenPrefixes(r, c.Routes)
		if r.Complete(c.Addresses, c.Routes) {
			hosts, prefixes := hostAddresses(c.Agent, statedb.Collect(addrs), statedb.Collect(nodes), taken)
			err := c.Hosts.ReplaceHost(owner, hosts)
			c.IPCache.Replace(owner, claims(c.Agent, hosts, prefixes), true) // second: this change makes programs evaluate flows with the address again
			if err != nil {
				health.Degraded("an address of the node is also an address of an endpoint", err)
			} else {
				health.OK(fmt.Sprintf("%d addresses", len(hosts)))
			}
		}
		return nil
	})
}

// takenPrefixes returns the destinations that the node's stack delivers locally, including destinations that are not addresses of the node. They are the
// destinations of routes of the types local, broadcast and anycast in the table local (rtnetlink(7)).
func takenPrefixes(r *loop.Round, routes statedb.Table[*devices.Route]) (prefixes []netip.Prefix) {
	for _, kind := range []int{unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST} {
		for row := range loop.List(r, routes, devices.RouteByType(kind)) {
			if row.Table == unix.RT_TABLE_LOCAL {
				prefixes = append(prefixes, row.Dst)
			}
		}
	}
	return prefixes
}

// hostAddresses returns the node's addresses of the enabled families and the prefixes that its stack delivers locally, both sorted. The router addresses are
// included as soon as they are known: packets to the gateway must not wait until waggle_host is observed. Destinations that
// no packet of a pod may have, such as loopback and link-local ones, are excluded.
func hostAddresses(a agentconfig.Agent, addrs []nodeaddresses.Address, nodes []*localnode.LocalNode, taken []netip.Prefix) (hosts []netip.Addr, prefixes []netip.Prefix) {
	enabled := func(addr netip.Addr) bool { return addr.Is4() && a.EnableIPv4 || addr.Is6() && a.EnableIPv6 }
	add := func(addr netip.Addr) {
		if addr.IsValid() && enabled(addr) {
			hosts = append(hosts, addr.WithZone(""))
		}
	}
	for _, row := range addrs {
		add(row.Addr)
	}
	for _, n := range nodes {
		add(n.IPv4.Router)
		add(n.IPv4.Health)
		add(n.IPv6.Router)
		add(n.IPv6.Health)
	}
	for _, prefix := range taken {
		switch addr := prefix.Addr(); {
		case addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || !enabled(addr):
		case prefix.IsSingleIP():
			hosts = append(hosts, addr)
		case prefix.Bits() > 0:
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(hosts), slices.Compact(prefixes)
}

// claims returns the identities of the addresses: the host for the node's own, and the world for all addresses without a longer prefix.
func claims(a agentconfig.Agent, hosts []netip.Addr, prefixes []netip.Prefix) []ipcache.Claim {
	dual := a.EnableIPv4 && a.EnableIPv6
	var list []ipcache.Claim
	if a.EnableIPv4 {
		list = append(list, ipcache.Claim{Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			Identity: identity.WorldOf(false, dual), Source: ipcache.SourceGenerated})
	}
	if a.EnableIPv6 {
		list = append(list, ipcache.Claim{Prefix: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
			Identity: identity.WorldOf(true, dual), Source: ipcache.SourceGenerated})
	}
	for _, prefix := range prefixes {
		list = append(list, ipcache.Claim{Prefix: prefix, Identity: identity.Host, Source: ipcache.SourceLocal})
	}
	for _, addr := range hosts {
		list = append(list, ipcache.Claim{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Identity: identity.Host, Source: ipcache.SourceLocal})
	}
	return list
}
