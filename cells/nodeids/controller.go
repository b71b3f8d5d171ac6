package nodeids

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	tables "github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// settle is the minimum interval between two rounds. A single change is not delayed.
const settle = 20 * time.Millisecond

type controller struct {
	cell.In
	DB       *statedb.DB
	Log      *slog.Logger
	Settings settings.Agent
	Table    statedb.RWTable[*tables.NodeID]
	Nodes    statedb.Table[*nodes.Node]
	Flows    statedb.Table[conntrack.Map]
	Kernel   kernel
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	initialized := c.Table.RegisterInitializer(txn, "nodeids")
	txn.Commit()
	heartbeat.AddRetried(jobs, "assign-node-ids", func(ctx context.Context, health cell.Health) error { return c.run(ctx, health, initialized) },
		100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health, initialized func(statedb.WriteTxn)) error {
	f := newFile(c.Settings)
	if err := c.restore(f); err != nil {
		health.Degraded("Restore ids", err)
		return err
	}
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Nodes) // the collector's table wakes the loop only at times
		changed := statedb.NewWatchSet()
		complete := changes.Watch(txn, changed, c.Nodes)
		have := statedb.Collect(c.Table.All(txn))
		var readError error
		next := assign(have, statedb.Collect(c.Nodes.All(txn)), complete, time.Now(), c.unused(txn, &readError))
		if next.waits() { // the collector writes every few seconds, which is of interest only then
			changes.Watch(txn, changed, c.Flows)
		}
		if err := errors.Join(c.commit(f, have, next, complete, initialized), readError); err != nil {
			health.Degraded("Assign ids", err)
			return err
		}
		if n := len(next.without); n > 0 {
			health.Degraded("Assign ids", fmt.Errorf("%d nodes get no id, because all %d are in use: their pods are not reached; the first is %s",
				n, tables.Max, next.without[0]))
		} else {
			health.OK(fmt.Sprintf("%d nodes", len(next.byName)))
		}
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// restore fills the table from the file once; a retry of the job finds the rows there.
func (c *controller) restore(f file) error {
	if c.Table.NumObjects(c.DB.ReadTxn()) > 0 {
		return nil
	}
	rows, err := f.read(c.Log, time.Now())
	if err != nil {
		return err
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range rows {
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("restore the id of node %s: %w", row.Name, err)
		}
	}
	txn.Commit()
	return nil
}

// unused reports whether nothing holds a released id any more: neither entries of flows nor those of ipcache, which is read only when flows hold none. An id
// of which that is not known is in use.
func (c *controller) unused(txn statedb.ReadTxn, readError *error) func(*tables.NodeID) bool {
	var named map[uint16]bool
	return func(row *tables.NodeID) bool {
		if !conntrack.PassedSince(txn, c.Flows, row.Released) {
			return false
		}
		if named == nil && *readError == nil {
			named, *readError = c.Kernel.Named()
		}
		return *readError == nil && !named[row.ID]
	}
}

// commit writes the file, then the table: maps never hold an id that the next run could assign to another node. Without the file the ids stay as they are, and
// nodes without one do not keep the others waiting.
func (c *controller) commit(f file, have []*tables.NodeID, next assigned, complete bool, initialized func(statedb.WriteTxn)) error {
	rows := next.rows()
	changed := !slices.Equal(have, rows) // rows that stay are the same pointers
	if changed {
		if err := f.write(rows); err != nil {
			txn := c.DB.WriteTxn(c.Table)
			defer txn.Commit()
			if complete {
				initialized(txn)
			}
			return err
		}
	}
	if !changed && !complete {
		return nil
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range have {
		if next.byName[row.Name] == nil {
			if _, _, err := c.Table.Delete(txn, row); err != nil {
				return fmt.Errorf("free the id of node %s: %w", row.Name, err)
			}
		}
	}
	for _, row := range rows {
		if old, _, found := c.Table.Get(txn, tables.ByName(row.Name)); found && old == row {
			continue
		}
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("assign an id to node %s: %w", row.Name, err)
		}
	}
	if complete {
		initialized(txn)
	}
	txn.Commit()
	return nil
}
