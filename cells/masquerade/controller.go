package masquerade

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// settle is the least time between two computations: a burst of changes becomes one, a single change does not wait.
const settle = 20 * time.Millisecond

type controller struct {
	cell.In
	DB         *statedb.DB
	Netdevs    statedb.RWTable[*tables.Netdev]
	Exclusions statedb.RWTable[*tables.Exclusion]
	Complete   initializers
	Devices    statedb.Table[*devices.Device]
	Addresses  statedb.Table[nodeaddresses.Address]
	LocalNode  statedb.Table[*localnode.LocalNode]
	Nodes      statedb.Table[*nodes.Node]
	IPMasq     statedb.Table[tables.IPMasq]
	Rules      rules
}

// initializers complete the tables, each by itself: what one waits for does not keep what is stale in the other.
type initializers struct{ netdevs, exclusions func(statedb.WriteTxn) }

func newInitializers(db *statedb.DB, netdevs statedb.RWTable[*tables.Netdev], exclusions statedb.RWTable[*tables.Exclusion]) initializers {
	txn := db.WriteTxn(netdevs, exclusions)
	defer txn.Commit()
	return initializers{netdevs.RegisterInitializer(txn, "masquerade"), exclusions.RegisterInitializer(txn, "masquerade")}
}

func registerController(jobs job.Group, c controller) {
	heartbeat.AddRetried(jobs, "compute-netdevs", c.run, 100*time.Millisecond, time.Minute)
}

// run writes exclusions as they become known, and devices once all devices and addresses are: a row without its addresses would take
// the address from an entry of the previous run. Entries of the previous run stay until the inputs are complete.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Devices, c.Addresses, c.LocalNode, c.Nodes, c.IPMasq)
		changed := statedb.NewWatchSet()
		netdevsComplete := changes.Watch(txn, changed, c.Devices, c.Addresses)
		exclusionsComplete := changes.Watch(txn, changed, c.LocalNode, c.Nodes, c.IPMasq)
		netdevs := netdevs(c.Rules, statedb.Collect(c.Devices.All(txn)), statedb.Collect(c.Addresses.All(txn)))
		exclusions := exclusions(c.Rules, statedb.Collect(c.LocalNode.All(txn)), statedb.Collect(c.Nodes.All(txn)), statedb.Collect(c.IPMasq.All(txn)))
		if err := c.commitExclusions(exclusions, exclusionsComplete); err != nil {
			return err
		}
		if netdevsComplete {
			if err := c.commitNetdevs(netdevs); err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d devices, %d prefixes excluded", len(netdevs), len(exclusions)))
		} else {
			health.OK(fmt.Sprintf("Waiting for the devices and addresses of the node, %d prefixes excluded", len(exclusions)))
		}
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// netdevs are the devices that lead out. One without an address is among them: what would leave there under another's is refused.
func netdevs(r rules, links []*devices.Device, addrs []nodeaddresses.Address) map[int]*tables.Netdev {
	want := map[int]*tables.Netdev{}
	byName := map[string]*tables.Netdev{}
	for _, d := range links {
		if d.Selected {
			row := &tables.Netdev{Index: d.Index, Name: d.Name, MasqueradeIPv4: r.ipv4, MasqueradeIPv6: r.ipv6,
				Status: reconciler.StatusPending()}
			want[d.Index], byName[d.Name] = row, row
		}
	}
	for _, a := range addrs {
		row := byName[a.Device]
		switch {
		case row == nil || !a.Source:
		case a.Addr.Is4():
			row.IPv4 = a.Addr
		default:
			row.IPv6 = a.Addr
		}
	}
	return want
}

// exclusions are the prefixes towards which pods keep their addresses.
func exclusions(r rules, self []*localnode.LocalNode, all []*nodes.Node, file []tables.IPMasq) map[netip.Prefix]*tables.Exclusion {
	want := map[netip.Prefix]*tables.Exclusion{}
	for _, n := range all {
		for _, p := range n.CIDRs[:min(n.FromNode, len(n.CIDRs))] { // an agent could claim the Internet for its CiliumNode
			want[p] = &tables.Exclusion{Prefix: p, Reason: tables.OtherPods, Status: reconciler.StatusPending()}
		}
	}
	for _, n := range self {
		for _, p := range []netip.Prefix{n.IPv4.AllocRange, n.IPv6.AllocRange} {
			if p.IsValid() {
				want[p.Masked()] = &tables.Exclusion{Prefix: p.Masked(), Reason: tables.OwnPods, Status: reconciler.StatusPending()}
			}
		}
	}
	for _, m := range file {
		want[m.Prefix] = &tables.Exclusion{Prefix: m.Prefix, Reason: tables.ByIPMasqAgent, Status: reconciler.StatusPending()}
	}
	for p, reason := range r.excluded {
		want[p] = &tables.Exclusion{Prefix: p, Reason: reason, Status: reconciler.StatusPending()}
	}
	return want
}

func (c *controller) commitNetdevs(want map[int]*tables.Netdev) error {
	txn := c.DB.WriteTxn(c.Netdevs)
	defer txn.Abort()
	if err := replace(txn, c.Netdevs, want, func(n *tables.Netdev) int { return n.Index }); err != nil {
		return err
	}
	c.Complete.netdevs(txn)
	txn.Commit()
	return nil
}

func (c *controller) commitExclusions(want map[netip.Prefix]*tables.Exclusion, complete bool) error {
	txn := c.DB.WriteTxn(c.Exclusions)
	defer txn.Abort()
	if err := replace(txn, c.Exclusions, want, func(e *tables.Exclusion) netip.Prefix { return e.Prefix }); err != nil {
		return err
	}
	if complete {
		c.Complete.exclusions(txn)
	}
	txn.Commit()
	return nil
}

// replace makes a table what is wanted. Rows that are right keep their status.
func replace[K comparable, R interface{ Equal(R) bool }](txn statedb.WriteTxn, table statedb.RWTable[R], want map[K]R, key func(R) K) error {
	changed := maps.Clone(want)
	for old := range table.All(txn) {
		k := key(old)
		if row, wanted := want[k]; !wanted {
			if _, _, err := table.Delete(txn, old); err != nil {
				return err
			}
		} else if row.Equal(old) {
			delete(changed, k)
		}
	}
	for _, row := range changed {
		if _, _, err := table.Insert(txn, row); err != nil {
			return err
		}
	}
	return nil
}
