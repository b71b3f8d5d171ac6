package loader

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// newTable creates the table attachments. The table is complete when devices and endpoints are; until then nothing is detached.
func newTable(db *statedb.DB) (statedb.RWTable[*attachments.Attachment], initialized, error) {
	table, err := attachments.NewTable(db)
	if err != nil {
		return nil, nil, err
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	return table, table.RegisterInitializer(txn, "loader"), nil
}

// initialized completes the table attachments; further calls have no effect.
type initialized func(statedb.WriteTxn)

// controller computes the table attachments from devices and endpoints.
type controller struct {
	cell.In

	DB          *statedb.DB
	Jobs        job.Group
	Generation  *generation
	SocketLB    socketlboptions.Options
	Devices     statedb.Table[*devices.Device]
	Endpoints   statedb.Table[*endpoints.Endpoint]
	Facts       statedb.Table[*bpfendpoints.Facts]
	Links       statedb.Table[*bpfendpoints.Link]
	Addresses   statedb.Table[*bpfendpoints.Address]
	Programs    statedb.Table[bpfprograms.Program]
	Maps        statedb.Table[*bpfmaps.Map]
	Ipcache     statedb.Table[*ipcache.Entry]
	NodeSlots   statedb.Table[*nodeslots.Slot]
	Frontends   statedb.Table[*frontends.Frontend]
	Sources     statedb.Table[sources.Source]
	Table       statedb.RWTable[*attachments.Attachment]
	Initialized initialized
}

func registerController(c controller) {
	watchdog.Add(c.Jobs, "plan-attachments", c.run)
}

// run has no debounce interval, because an ADD waits for its attachment. Commits that arrive during a pass form one batch.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	changes, err := c.subscribe()
	if err != nil {
		return fmt.Errorf("follow the rows of endpoints: %w", err)
	}
	defer changes.Close()
	filtered, reported := false, false
	return loop.Run(ctx, c.DB, loop.Options{Interval: endpointfeed.FullPassInterval}, func(r *loop.Round) error {
		marked := changes.Next(r.Txn, r.Changed)
		shared := c.shared(r.Txn, r.Changed)
		if r.Full || shared.filtered != filtered {
			marked, filtered = c.everything(r.Txn), shared.filtered
		}
		complete := r.Complete(c.Devices, c.Endpoints)

		rows := c.desired(r.Txn, shared, marked)

		written := c.commit(rows, marked, complete && shared.complete)

		if r.Full || written || shared.complete != reported {
			reported = shared.complete
			c.report(health, reported)
		}
		return nil
	})
}

// commit writes the shared rows and the rows of the marked endpoints that differ, and leaves all other rows and their statuses unchanged. It removes unchanged
// rows from the map rows, and reports whether it wrote any row.
func (c *controller) commit(rows map[string]*attachments.Attachment, m endpointfeed.Marks, complete bool) (written bool) {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for have := range c.concerned(txn, m) {
		want, wanted := rows[have.Key()]
		switch {
		case !wanted:
			_, _, _ = c.Table.Delete(txn, have)
			written = true
		case want.Equal(have):
			delete(rows, have.Key())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(rows)) { // the reconciler processes rows in this order
		_, _, _ = c.Table.Insert(txn, rows[key].WithStatus(reconciler.StatusPending()))
		written = true
	}
	done, _ := c.Table.Initialized(txn)
	if !done && complete {
		c.Initialized(txn)
		written = true
	}
	if written { // avoid the cost of an empty commit
		txn.Commit()
	}
	return written
}

// concerned returns the shared rows and the rows of the marked endpoints.
func (c *controller) concerned(txn statedb.ReadTxn, m endpointfeed.Marks) iter.Seq[*attachments.Attachment] {
	return func(yield func(*attachments.Attachment) bool) {
		for _, kind := range sharedKinds {
			for row := range c.Table.Prefix(txn, attachments.ByKey(string(kind)+"/")) {
				if !yield(row) {
					return
				}
			}
		}
		for id := range m {
			for row := range c.Table.List(txn, attachments.ByEndpoint(id)) {
				if !yield(row) {
					return
				}
			}
		}
	}
}

func (c *controller) report(health cell.Health, complete bool) {
	txn := c.DB.ReadTxn()
	_, held := c.device(txn, podlink.HoldDevice)
	switch {
	case !held:
		health.OK("waiting for the device " + podlink.HoldDevice)
	case !complete:
		health.OK("waiting for the entries of all endpoints in new maps; until then hooks are unchanged")
	default:
		health.OK(fmt.Sprintf("%d attachments", c.Table.NumObjects(txn)))
	}
}
