package ipam

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
)

// usageSettle bounds how often addresses are counted: that costs a pass over all rows, and nobody allocates by it.
const usageSettle = 250 * time.Millisecond

// usageLoop keeps ipam-usage in step with ipam-addresses and with the counters. It is a loop of its own, so that an
// allocation pays for none of it.
func (a *allocator) usageLoop(usage statedb.RWTable[ipamusage.Usage]) func(context.Context, cell.Health) error {
	return func(ctx context.Context, health cell.Health) error {
		for {
			txn := heartbeat.Snapshot(ctx, a.db, a.table)
			watch := statedb.NewWatchSet()
			_, changed := a.table.AllWatch(txn)
			watch.Add(changed)
			rows := a.usages(txn)
			if err := commitUsage(a.db, usage, rows); err != nil {
				health.Degraded("count addresses", err)
				return err
			}
			health.OK(fmt.Sprintf("%d families", len(rows)))
			heartbeat.Idle(ctx)
			if _, err := watch.Wait(ctx, usageSettle); err != nil {
				return nil
			}
		}
	}
}

// usages counts each family that has a range.
func (a *allocator) usages(txn statedb.ReadTxn) []ipamusage.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	var rows []ipamusage.Usage
	for _, f := range []*family{&a.ipv4, &a.ipv6} {
		if f.free == nil {
			continue
		}
		u := ipam.Count(txn, a.table, f.name, f.free.Prefix())
		rows = append(rows, ipamusage.Usage{Family: f.name, Range: u.Range, Capacity: u.Usable.String(), Used: u.Used(),
			Quarantined: u.Quarantined, Excluded: u.Excluded, Outside: u.Outside, Events: f.events})
	}
	return rows
}

// commitUsage writes what differs.
func commitUsage(db *statedb.DB, table statedb.RWTable[ipamusage.Usage], rows []ipamusage.Usage) error {
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for _, row := range rows {
		if old, _, found := table.Get(txn, ipamusage.ByFamily(row.Family)); found && old == row {
			continue
		}
		if _, _, err := table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert the usage of %s: %w", row.Family, err)
		}
	}
	txn.Commit()
	return nil
}
