package nodeaddresses

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	tables "github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

// settle is the minimum interval between two computations. A single change is not delayed.
const settle = 20 * time.Millisecond

type controller struct {
	cell.In
	DB        *statedb.DB
	Table     statedb.RWTable[tables.Address]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
	Nodes     statedb.Table[*k8s.Node]
	Agent     settings.Agent
	Rules     rules
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	done := c.Table.RegisterInitializer(txn, "devices")
	txn.Commit()
	heartbeat.AddRetried(jobs, "compute-addresses", func(ctx context.Context, health cell.Health) error {
		return c.run(ctx, health, done)
	}, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Devices, c.Addresses)
		_, linksChanged := c.Devices.AllWatch(txn)
		addrs, addrsChanged := c.Addresses.AllWatch(txn)
		// The Node may be absent; the ranking then depends only on the state of the kernel.
		node, _, nodeChanged, _ := c.Nodes.GetWatch(txn, k8s.NodeByName(c.Agent.NodeName))
		ready, initialized := c.Addresses.Initialized(txn)
		if ready {
			link := func(index int) *devices.Device {
				d, _, _ := c.Devices.Get(txn, devices.ByIndex(index))
				return d
			}
			n, err := c.commit(compute(c.Rules, link, statedb.ToSeq(addrs), named(node)), done)
			if err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d addresses", n))
			initialized = nil // the channel is closed from now on
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-linksChanged:
		case <-addrsChanged:
		case <-nodeChanged:
		case <-initialized:
		}
		if err := limiter.Wait(ctx); err != nil {
			return nil
		}
	}
}

// named returns the addresses in the status of the Node.
func named(node *k8s.Node) (addrs []netip.Addr) {
	if node == nil {
		return nil
	}
	for _, a := range node.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

func (c *controller) commit(want []tables.Address, done func(statedb.WriteTxn)) (int, error) {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	keep := make(map[tables.Address]struct{}, len(want))
	for _, row := range want {
		keep[row] = struct{}{}
		old, _, found := c.Table.Get(txn, tables.ByID(row.Addr.String()+"@"+row.Device))
		if found && old == row {
			continue
		}
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return 0, err
		}
	}
	for old := range c.Table.All(txn) {
		if _, ok := keep[old]; !ok {
			if _, _, err := c.Table.Delete(txn, old); err != nil {
				return 0, err
			}
		}
	}
	done(txn)
	txn.Commit()
	return len(keep), nil
}
