//go:build freeze

package liveness

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// freezeTables holds a write transaction on each table that the test has frozen.
func freezeTables(p params) {
	heartbeat.Add(p.Jobs, "freeze-tables", func(ctx context.Context, _ cell.Health) error {
		heartbeat.Idle(ctx) // this loop must not count as a stall
		for ctx.Err() == nil {
			for _, table := range p.DB.GetTables(p.DB.ReadTxn()) {
				if !heartbeat.Frozen("table " + table.Name()) {
					continue
				}
				txn := p.DB.WriteTxn(table)
				for heartbeat.Frozen("table " + table.Name()) {
					time.Sleep(5 * time.Millisecond)
				}
				txn.Abort()
			}
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	})
}
