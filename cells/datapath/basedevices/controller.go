package basedevices

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/watchdog"

	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// owner, routesOwner and podRoutesOwner are the owners of this cell's rows in other tables.
const (
	owner          = "base-devices"
	routesOwner    = desiredroutes.LocalNode
	podRoutesOwner = "endpoints-outside"
)

// pause is the minimum time between two computations; the first one after a longer time starts at once.
const pause = 20 * time.Millisecond

type controller struct {
	cell.In
	DB        *statedb.DB
	Agent     agentconfig.Agent
	Table     statedb.RWTable[*desireddevices.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	MTUs      statedb.Table[mtus.MTU]
	Endpoints statedb.Table[*endpoints.Endpoint]
	Routes    desiredroutes.Writer
	Desired   statedb.Table[*desiredroutes.Route]
	Sysctls   sysctls.Writer
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	done := c.Table.RegisterInitializer(txn, owner)
	txn.Commit()
	c.Routes.Expect(routesOwner)
	c.Routes.Expect(podRoutesOwner)
	watchdog.AddRetried(jobs, "compute-devices", func(ctx context.Context, health cell.Health) error {
		return c.run(ctx, health, done)
	}, 100*time.Millisecond, time.Minute)
}

// run processes endpoints with changes, so that the cost of an ADD does not depend on the number of endpoints, and all endpoints once a minute, when the node
// changes and after an error.
func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	feed, err := follow(c.DB, c.Endpoints)
	if err != nil {
		return err
	}
	defer feed.Close()
	var last inputs
	var lastRouted bool
	var pods outside
	var taken error // error of the last round
	return loop.Run(ctx, c.DB, loop.Options{Pause: pause, Interval: endpointfeed.FullPassInterval}, func(r *loop.Round) error {
		list, now := feed.UpTo(r.Txn, r.Changed), c.inputs(r)
		altered := true
		if r.Full || taken != nil || now != last {
			pods = outsideOf(now.node, statedb.ToSeq(c.Endpoints.All(r.Txn)))
		} else {
			altered = pods.update(now.node, list)
		}
		last, taken = now, nil
		if altered {
			taken = c.contribute(now, pods)
		}
		if routed := now.restored && c.routed(r.Changed); altered || routed != lastRouted {
			lastRouted = routed
			if err := c.commit(desiredDevices(now.node, now.mtu, routed), done); err != nil {
				return err
			}
		}
		if taken != nil {
			health.Degraded("routes or settings have another owner", taken)
		} else {
			health.OK("desired devices are up to date")
		}
		return nil
	})
}

// inputs are the inputs of devices, routes and settings, without the endpoints.
type inputs struct {
	node     *localnode.LocalNode // nil while unknown
	mtu      int                  // bytes; 0 while unknown
	restored bool                 // the table endpoints is initialized
}

// inputs reads the tables.
func (c *controller) inputs(r *loop.Round) (in inputs) {
	for n := range loop.All(r, c.LocalNode) {
		in.node = n
	}
	mtu, _ := loop.Get(r, c.MTUs, mtus.ByPrefix(mtus.Default))
	in.mtu, in.restored = mtu.DeviceMTU, r.Complete(c.Endpoints)
	return in
}

// contribute passes routes and settings to their writers. Until the node is ready and the endpoints are restored, the routes of the previous run stay.
func (c *controller) contribute(in inputs, pods outside) error {
	err := c.Sysctls.Replace(owner, desiredSysctls(c.Agent))
	if in.node != nil && in.node.Ready && in.restored {
		err = errors.Join(err, c.Routes.Replace(podRoutesOwner, withMetric(pods.routes(), c.Agent.RouteMetric)),
			c.Routes.Replace(routesOwner, withMetric(desiredRoutes(in.node), c.Agent.RouteMetric)))
	}
	return err
}

// routed reports whether the kernel has the contributed routes to pods outside the node's range. It adds to changed the channel that closes when the result may
// change.
func (c *controller) routed(changed *statedb.WatchSet) bool {
	rows, more := c.Desired.ListWatch(c.DB.ReadTxn(), desiredroutes.ByOwner(podRoutesOwner))
	changed.Add(more)
	for row := range rows {
		if row.Status.Kind != reconciler.StatusKindDone {
			return false
		}
	}
	return true
}

func (c *controller) commit(want []*desireddevices.Device, done func(statedb.WriteTxn)) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range want {
		if err := rows.Put(txn, c.Table, desireddevices.ByName(row.Name), row.WithStatus(reconciler.StatusPending()), rows.Same); err != nil {
			return err
		}
	}
	done(txn)
	txn.Commit()
	return nil
}
