package nodeaddressfinder

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the minimum interval between two computations. A single change is not delayed.
const settle = 20 * time.Millisecond

type controller struct {
	cell.In
	DB        *statedb.DB
	Table     statedb.RWTable[nodeaddresses.Address]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
	Nodes     statedb.Table[*k8s.Node]
	Agent     agentconfig.Agent
	Rules     rules
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	done := c.Table.RegisterInitializer(txn, "devices")
	txn.Commit()
	watchdog.AddRetried(jobs, "compute-addresses", func(ctx context.Context, health cell.Health) error {
		return c.run(ctx, health, done)
	}, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	// A round before the addresses are known would delay the first rows by the pause.
	if !loop.Await(ctx, c.DB, loop.Options{}, func(r *loop.Round) bool { return r.Complete(c.Addresses) }) {
		return nil
	}
	watched := []statedb.TableMeta{c.Devices, c.Addresses}
	return loop.Run(ctx, c.DB, loop.Options{Tables: watched, Pause: settle}, func(r *loop.Round) error {
		r.Watch(watched...)
		// The Node may be absent; the ranking then depends only on the state of the kernel.
		node, _ := loop.Get(r, c.Nodes, k8s.NodeByName(c.Agent.NodeName))
		link := func(index int) *devices.Device {
			d, _, _ := c.Devices.Get(r.Txn, devices.ByIndex(index))
			return d
		}
		n, err := c.commit(compute(c.Rules, link, statedb.ToSeq(c.Addresses.All(r.Txn)), named(node)), done)
		if err != nil {
			return err
		}
		health.OK(fmt.Sprintf("%d addresses", n))
		return nil
	})
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

func (c *controller) commit(list []nodeaddresses.Address, done func(statedb.WriteTxn)) (int, error) {
	id := func(row nodeaddresses.Address) string { return row.Addr.String() + "@" + row.Device }
	want := make(map[string]nodeaddresses.Address, len(list))
	for _, row := range list {
		want[id(row)] = row
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	if err := rows.Replace(txn, c.Table, c.Table.All(txn), want, id, rows.Identical); err != nil {
		return 0, err
	}
	done(txn)
	txn.Commit()
	return len(want), nil
}
