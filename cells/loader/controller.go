package loader

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// newTable makes the table. It is complete once devices and endpoints are; until then nothing is detached.
func newTable(db *statedb.DB) (statedb.RWTable[*attachments.Attachment], initialized, error) {
	table, err := attachments.NewTable(db)
	if err != nil {
		return nil, nil, err
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	return table, table.RegisterInitializer(txn, "loader"), nil
}

// initialized completes the table attachments; only the first call counts.
type initialized func(statedb.WriteTxn)

// controller keeps attachments in step with devices and endpoints.
type controller struct {
	cell.In

	DB          *statedb.DB
	Jobs        job.Group
	Generation  *generation
	Devices     statedb.Table[*devices.Device]
	Endpoints   statedb.Table[*endpoints.Endpoint]
	Facts       statedb.Table[*bpfendpoints.Facts]
	Links       statedb.Table[*bpfendpoints.Link]
	Addresses   statedb.Table[*bpfendpoints.Address]
	Table       statedb.RWTable[*attachments.Attachment]
	Initialized initialized
}

func registerController(c controller) { c.Jobs.Add(job.OneShot("plan-attachments", c.run)) }

func (c *controller) run(ctx context.Context, health cell.Health) error {
	for {
		txn := c.DB.ReadTxn()
		changed := c.watch(txn)

		rows := c.desired(txn)

		n := len(rows)
		c.commit(rows, c.complete(txn))

		c.report(health, txn, n)

		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // the agent stops
		}
	}
}

// watch collects all that the rows are computed from.
func (c *controller) watch(txn statedb.ReadTxn) *statedb.WatchSet {
	_, d := c.Devices.AllWatch(txn)
	_, e := c.Endpoints.AllWatch(txn)
	_, f := c.Facts.AllWatch(txn)
	_, l := c.Links.AllWatch(txn)
	_, a := c.Addresses.AllWatch(txn)
	_, t := c.Table.AllWatch(txn)
	set := statedb.NewWatchSet()
	set.Add(d, e, f, l, a, t)
	if done, w := c.Devices.Initialized(txn); !done {
		set.Add(w)
	}
	if done, w := c.Endpoints.Initialized(txn); !done {
		set.Add(w)
	}
	return set
}

func (c *controller) complete(txn statedb.ReadTxn) bool {
	d, _ := c.Devices.Initialized(txn)
	e, _ := c.Endpoints.Initialized(txn)
	return d && e
}

// commit writes what differs and leaves the rest, with its status, alone. It takes rows apart.
func (c *controller) commit(rows map[string]*attachments.Attachment, complete bool) {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	wrote := false
	for have := range c.Table.All(txn) {
		want, wanted := rows[have.Key()]
		switch {
		case !wanted:
			_, _, _ = c.Table.Delete(txn, have)
			wrote = true
		case want.Equal(have):
			delete(rows, have.Key())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(rows)) { // the reconciler keeps this order
		_, _, _ = c.Table.Insert(txn, rows[key].WithStatus(reconciler.StatusPending()))
		wrote = true
	}
	done, _ := c.Table.Initialized(txn)
	if !done && complete {
		c.Initialized(txn)
		wrote = true
	}
	if wrote { // a commit without a change would only cost
		txn.Commit()
	}
}

func (c *controller) report(health cell.Health, txn statedb.ReadTxn, n int) {
	_, held := c.device(txn, podlink.HoldDevice)
	switch {
	case c.Generation.err != nil:
		health.Degraded("Programs of an earlier run are kept", c.Generation.err)
	case !held:
		health.OK("Waiting for the device " + podlink.HoldDevice)
	default:
		health.OK(fmt.Sprintf("%d attachments", n))
	}
}
