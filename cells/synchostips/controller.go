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
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

const (
	// owner names this cell's contributions.
	owner = ipcache.OwnerHost
	// interval is how often the contribution is made even without a change: an address that an endpoint had in the way
	// is tried again.
	interval = time.Minute
	// pause is the least time between two contributions; the first after a pause does not wait.
	pause = 20 * time.Millisecond
)

type controller struct {
	cell.In
	DB        *statedb.DB
	Agent     settings.Agent
	Addresses statedb.Table[nodeaddresses.Address]
	LocalNode statedb.Table[*localnode.LocalNode]
	Hosts     bpfendpoints.HostWriter
	IPCache   ipcache.Writer
}

func registerController(jobs job.Group, c controller) {
	heartbeat.Add(jobs, "sync-host-ips", c.run)
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	every := time.NewTicker(interval)
	defer every.Stop()
	limiter := rate.NewLimiter(rate.Every(pause), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Addresses, c.LocalNode)
		addrs, addrsChanged := c.Addresses.AllWatch(txn)
		nodes, nodeChanged := c.LocalNode.AllWatch(txn)
		ready, initialized := c.Addresses.Initialized(txn)
		if ready {
			initialized = nil // closed for ever
			hosts := hostAddresses(c.Agent, statedb.Collect(addrs), statedb.Collect(nodes))
			c.IPCache.Replace(owner, claims(c.Agent, hosts), true)
			if err := c.Hosts.ReplaceHost(owner, hosts); err != nil {
				health.Degraded("an address of the node is also an endpoint's", err)
			} else {
				health.OK(fmt.Sprintf("%d addresses", len(hosts)))
			}
		}
		heartbeat.IdleFor(ctx, interval)
		select {
		case <-ctx.Done():
			return nil
		case <-addrsChanged:
		case <-nodeChanged:
		case <-initialized:
		case <-every.C:
		}
	}
	return nil
}

// hostAddresses are the node's addresses of the enabled families, sorted. The routers are among them from the moment
// they are known: packets to the gateway must not wait for waggle_host to be observed.
func hostAddresses(a settings.Agent, addrs []nodeaddresses.Address, nodes []*localnode.LocalNode) []netip.Addr {
	var hosts []netip.Addr
	add := func(addr netip.Addr) {
		if addr.IsValid() && (addr.Is4() && a.EnableIPv4 || addr.Is6() && a.EnableIPv6) {
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
	slices.SortFunc(hosts, netip.Addr.Compare)
	return slices.Compact(hosts)
}

// claims says whose the addresses are: the node's own are the host's, all that nobody knows better is the world's.
func claims(a settings.Agent, hosts []netip.Addr) []ipcache.Claim {
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
	for _, addr := range hosts {
		list = append(list, ipcache.Claim{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Identity: identity.Host, Source: ipcache.SourceLocal})
	}
	return list
}
