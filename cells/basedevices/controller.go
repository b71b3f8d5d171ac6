package basedevices

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	agent "github.com/waggle-net/waggle/pkg/settings"

	tables "github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// owner, routesOwner and podRoutesOwner name this cell's contributions to other tables.
const (
	owner          = "base-devices"
	routesOwner    = "local-node"
	podRoutesOwner = "endpoints-outside"
)

// pause is the least time between two computations; the first after a pause does not wait.
const pause = 20 * time.Millisecond

type controller struct {
	cell.In
	DB        *statedb.DB
	Agent     agent.Agent
	Table     statedb.RWTable[*tables.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	MTUs      statedb.Table[mtus.MTU]
	Endpoints statedb.Table[*endpoints.Endpoint]
	Routes    desiredroutes.Writer
	Sysctls   sysctls.Writer
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	done := c.Table.RegisterInitializer(txn, owner)
	txn.Commit()
	c.Routes.Expect(routesOwner)
	c.Routes.Expect(podRoutesOwner)
	heartbeat.AddRetried(jobs, "compute-devices", func(ctx context.Context, health cell.Health) error {
		return c.run(ctx, health, done)
	}, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	limiter := rate.NewLimiter(rate.Every(pause), 1)
	for limiter.Wait(ctx) == nil {
		heartbeat.Busy(ctx)
		txn := c.DB.ReadTxn()
		nodes, nodeChanged := c.LocalNode.AllWatch(txn)
		mtu, _, mtuChanged, _ := c.MTUs.GetWatch(txn, mtus.ByPrefix(mtus.Default))
		var node *localnode.LocalNode
		for n := range nodes {
			node = n
		}
		// With the old address of waggle_host the kernel removes the route that has it as source: the routes that pods
		// outside a new range go by have to be there by then.
		pods, podsChanged := c.pods(txn)
		taken := c.contribute(node, pods)
		if err := c.commit(desiredDevices(node, mtu.DeviceMTU), done); err != nil {
			return err
		}
		if taken != nil {
			health.Degraded("routes or settings are wanted by somebody else", taken)
		} else {
			health.OK("Devices are known")
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
		case <-nodeChanged:
		case <-mtuChanged:
		case <-podsChanged:
		}
	}
	return nil
}

// pods lists the endpoints, or nothing before all of an earlier run are known, and what to watch.
func (c *controller) pods(txn statedb.ReadTxn) ([]*endpoints.Endpoint, <-chan struct{}) {
	if known, initialized := c.Endpoints.Initialized(txn); !known {
		return nil, initialized
	}
	rows, changed := c.Endpoints.AllWatch(txn)
	pods := make([]*endpoints.Endpoint, 0, c.Endpoints.NumObjects(txn))
	for row := range rows {
		pods = append(pods, row)
	}
	return pods, changed
}

// contribute hands routes and settings to those who keep them. Until the node is ready and the endpoints are known (pods
// is nil before), the routes of an earlier run stay. When the range changes, the routes of pods outside the new one come
// first, so that they are never without.
func (c *controller) contribute(node *localnode.LocalNode, pods []*endpoints.Endpoint) error {
	err := c.Sysctls.Replace(owner, desiredSysctls(c.Agent))
	if node != nil && node.Ready && pods != nil {
		err = errors.Join(err, c.Routes.Replace(podRoutesOwner, desiredPodRoutes(node, pods)),
			c.Routes.Replace(routesOwner, desiredRoutes(node)))
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
