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

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	agent "github.com/waggle-net/waggle/pkg/settings"

	tables "github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// owner, routesOwner and podRoutesOwner are the owners of this cell's rows in other tables.
const (
	owner          = "base-devices"
	routesOwner    = "local-node"
	podRoutesOwner = "endpoints-outside"
)

// pause is the minimum time between two computations; the first one after a longer time starts at once.
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
	Desired   statedb.Table[*desiredroutes.Route]
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

// run processes endpoints with changes, so that the cost of an ADD does not depend on the number of endpoints, and all endpoints once a minute, when the node
// changes and after an error.
func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	feed, err := follow(c.DB, c.Endpoints)
	if err != nil {
		return err
	}
	defer feed.Close()
	limiter := rate.NewLimiter(rate.Every(pause), 1)
	var last inputs
	var lastRouted bool
	var pods outside
	for full, alive := true, true; alive && limiter.Wait(ctx) == nil; {
		heartbeat.Busy(ctx)
		txn, changed := c.DB.ReadTxn(), statedb.NewWatchSet()
		list, now := feed.UpTo(txn, changed), c.inputs(txn, changed)
		altered := true
		if full || now != last {
			pods = outsideOf(now.node, statedb.ToSeq(c.Endpoints.All(txn)))
		} else {
			altered = pods.update(now.node, list)
		}
		last = now
		var taken error
		if altered {
			taken = c.contribute(now, pods)
		}
		if routed := now.restored && c.routed(changed); altered || routed != lastRouted {
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
		heartbeat.IdleFor(ctx, endpointfeed.FullPassInterval)
		full, alive = endpointfeed.Wait(ctx, changed)
		full = full || taken != nil
	}
	return nil
}

// inputs are the inputs of devices, routes and settings, without the endpoints.
type inputs struct {
	node     *localnode.LocalNode // nil while unknown
	mtu      int                  // bytes; 0 while unknown
	restored bool                 // the table endpoints is initialized
}

// inputs reads the tables, and adds to changed the channels that close at the next change.
func (c *controller) inputs(txn statedb.ReadTxn, changed *statedb.WatchSet) (in inputs) {
	nodes, nodeChanged := c.LocalNode.AllWatch(txn)
	mtu, _, mtuChanged, _ := c.MTUs.GetWatch(txn, mtus.ByPrefix(mtus.Default))
	changed.Add(nodeChanged, mtuChanged)
	for n := range nodes {
		in.node = n
	}
	in.mtu = mtu.DeviceMTU
	var initialized <-chan struct{}
	if in.restored, initialized = c.Endpoints.Initialized(txn); !in.restored {
		changed.Add(initialized)
	}
	return in
}

// contribute passes routes and settings to their writers. Until the node is ready and the endpoints are restored, the routes of the previous run stay.
func (c *controller) contribute(in inputs, pods outside) error {
	err := c.Sysctls.Replace(owner, desiredSysctls(c.Agent))
	if in.node != nil && in.node.Ready && in.restored {
		err = errors.Join(err, c.Routes.Replace(podRoutesOwner, pods.routes()),
			c.Routes.Replace(routesOwner, desiredRoutes(in.node)))
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
