package basedevices

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	agent "github.com/waggle-net/waggle/pkg/settings"

	tables "github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// owner and routesOwner name this cell's contributions to other tables.
const (
	owner       = "base-devices"
	routesOwner = "local-node"
)

type controller struct {
	cell.In
	DB        *statedb.DB
	Agent     agent.Agent
	Table     statedb.RWTable[*tables.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	MTUs      statedb.Table[mtus.MTU]
	Routes    desiredroutes.Writer
	Sysctls   sysctls.Writer
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	done := c.Table.RegisterInitializer(txn, owner)
	txn.Commit()
	c.Routes.Expect(routesOwner)
	jobs.Add(job.OneShot("compute-devices", func(ctx context.Context, health cell.Health) error {
		return c.run(ctx, health, done)
	}, job.WithRetry(-1, &job.ExponentialBackoff{Min: 100 * time.Millisecond, Max: time.Minute})))
}

func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	for {
		txn := c.DB.ReadTxn()
		nodes, nodeChanged := c.LocalNode.AllWatch(txn)
		mtu, _, mtuChanged, _ := c.MTUs.GetWatch(txn, mtus.ByPrefix(mtus.Default))
		var node *localnode.LocalNode
		for n := range nodes {
			node = n
		}
		if err := c.commit(desiredDevices(node, mtu.DeviceMTU), done); err != nil {
			return err
		}
		if err := c.contribute(node); err != nil {
			health.Degraded("routes or settings are wanted by somebody else", err)
		} else {
			health.OK("Devices are known")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-nodeChanged:
		case <-mtuChanged:
		}
	}
}

// contribute hands routes and settings to those who keep them. Until the node is ready its routes of an earlier run stay.
func (c *controller) contribute(node *localnode.LocalNode) error {
	err := c.Sysctls.Replace(owner, desiredSysctls(c.Agent))
	if node != nil && node.Ready {
		err = errors.Join(err, c.Routes.Replace(routesOwner, desiredRoutes(node)))
	}
	return err
}

func (c *controller) commit(want []*tables.Device, done func(statedb.WriteTxn)) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range want {
		if old, _, found := c.Table.Get(txn, tables.ByName(row.Name)); found && old.Equal(row) {
			continue
		}
		if _, _, err := c.Table.Insert(txn, row.WithStatus(reconciler.StatusPending())); err != nil {
			return err
		}
	}
	done(txn)
	txn.Commit()
	return nil
}
