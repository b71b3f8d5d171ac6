package masquerademaps

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the minimum time between two computations: it combines a burst of changes, and does not delay a single change.
const settle = 20 * time.Millisecond

type controller struct {
	cell.In
	DB         *statedb.DB
	Netdevs    statedb.RWTable[*masquerade.Netdev]
	Exclusions statedb.RWTable[*masquerade.Exclusion]
	Complete   initializers
	Devices    statedb.Table[*devices.Device]
	Addresses  statedb.Table[nodeaddresses.Address]
	LocalNode  statedb.Table[*localnode.LocalNode]
	Nodes      statedb.Table[*nodes.Node]
	IPMasq     statedb.Table[masquerade.IPMasq]
	Rules      rules
}

// initializers complete the tables independently: a missing input of one table does not delay the removal of stale entries of the other.
type initializers struct{ netdevs, exclusions func(statedb.WriteTxn) }

func newInitializers(db *statedb.DB, netdevs statedb.RWTable[*masquerade.Netdev], exclusions statedb.RWTable[*masquerade.Exclusion]) initializers {
	txn := db.WriteTxn(netdevs, exclusions)
	defer txn.Commit()
	return initializers{netdevs.RegisterInitializer(txn, "masquerade"), exclusions.RegisterInitializer(txn, "masquerade")}
}

func registerController(jobs job.Group, c controller) {
	var all *exclusions // a retry continues where the previous attempt ended
	watchdog.AddRetried(jobs, "compute-netdevs", func(ctx context.Context, health cell.Health) (err error) {
		if all == nil {
			if all, err = followExclusions(c.DB, c.Rules, c.Nodes); err != nil {
				return err
			}
		}
		return c.run(ctx, health, all)
	}, 100*time.Millisecond, time.Minute)
}

// run writes exclusions as soon as they are known, and devices once all devices and addresses are known: a row without its addresses would remove
// the address from an entry of the previous run. Entries of the previous run stay until the inputs are complete.
func (c *controller) run(ctx context.Context, health cell.Health, exclusions *exclusions) error {
	inputs := []statedb.TableMeta{c.Devices, c.Addresses, c.LocalNode, c.Nodes, c.IPMasq}
	err := loop.Run(ctx, c.DB, loop.Options{Tables: inputs, Pause: settle}, func(r *loop.Round) error {
		netdevsComplete := r.Complete(c.Devices, c.Addresses)
		exclusionsComplete := r.Complete(c.LocalNode, c.Nodes, c.IPMasq)
		netdevs := netdevs(c.Rules, statedb.Collect(loop.All(r, c.Devices)), statedb.Collect(loop.All(r, c.Addresses)))
		exclusions.upTo(r.Txn, r.Changed, statedb.Collect(loop.All(r, c.LocalNode)), statedb.Collect(loop.All(r, c.IPMasq)))
		if err := exclusions.commit(c.DB, c.Exclusions, exclusionsComplete, c.Complete.exclusions); err != nil {
			return err
		}
		excluded := c.Exclusions.NumObjects(c.DB.ReadTxn())
		if netdevsComplete {
			if err := c.commitNetdevs(netdevs); err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d devices, %d prefixes excluded", len(netdevs), excluded))
		} else {
			health.OK(fmt.Sprintf("waiting for the devices and addresses of the node, %d prefixes excluded", excluded))
		}
		return nil
	})
	if err == nil {
		exclusions.rows.Close()
	}
	return err
}

// netdevs returns the devices that lead out of the node. It includes devices without an address: packets that would need masquerading on such a device are
// dropped.
func netdevs(r rules, links []*devices.Device, addrs []nodeaddresses.Address) map[int]*masquerade.Netdev {
	want := map[int]*masquerade.Netdev{}
	byName := map[string]*masquerade.Netdev{}
	for _, d := range links {
		if d.Selected {
			row := &masquerade.Netdev{Index: d.Index, Name: d.Name, MasqueradeIPv4: r.ipv4, MasqueradeIPv6: r.ipv6,
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

// commitNetdevs opens no write transaction for unchanged devices: most rounds are about the pod range of another node.
func (c *controller) commitNetdevs(want map[int]*masquerade.Netdev) error {
	if c.hasNetdevs(want) {
		return nil
	}
	txn := c.DB.WriteTxn(c.Netdevs)
	defer txn.Abort()
	if err := rows.Replace(txn, c.Netdevs, c.Netdevs.All(txn), want, func(n *masquerade.Netdev) int { return n.Index }, rows.Same); err != nil {
		return err
	}
	c.Complete.netdevs(txn)
	txn.Commit()
	return nil
}

// hasNetdevs reports whether the table is complete and has exactly these rows, whatever their status.
func (c *controller) hasNetdevs(want map[int]*masquerade.Netdev) bool {
	txn := c.DB.ReadTxn()
	if complete, _ := c.Netdevs.Initialized(txn); !complete || c.Netdevs.NumObjects(txn) != len(want) {
		return false
	}
	for old := range c.Netdevs.All(txn) {
		if row, found := want[old.Index]; !found || !old.Equal(row) {
			return false
		}
	}
	return true
}
