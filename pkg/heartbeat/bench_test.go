package heartbeat_test

import (
	"context"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// BenchmarkStep checks as many loops as the agent has, with tables of 1,000 unchanged rows.
func BenchmarkStep(b *testing.B) {
	m := heartbeat.NewMonitor()
	db := statedb.New(statedb.WithMetrics(m.Transactions(&statedb.NopMetrics{})))
	for range 60 {
		_ = heartbeat.WatchedTimer(heartbeat.NewGroup(nil, m, cell.FullModuleID{"bench"}), "x", nil, time.Hour)
	}
	for b.Loop() {
		m.Step(0, db.ReadTxn())
	}
}

func BenchmarkBusyIdle(b *testing.B) {
	m := heartbeat.NewMonitor()
	ctx, end := heartbeat.Begin(context.Background(), heartbeat.NewGroup(nil, m, cell.FullModuleID{"bench"}), "x")
	defer end()
	for b.Loop() {
		heartbeat.Busy(ctx)
		heartbeat.Idle(ctx)
	}
}

func BenchmarkWriteTxn(b *testing.B) {
	for name, metrics := range map[string]statedb.Metrics{"plain": &statedb.NopMetrics{}, "watched": heartbeat.NewMonitor().Transactions(&statedb.NopMetrics{})} {
		b.Run(name, func(b *testing.B) {
			db := statedb.New(statedb.WithMetrics(metrics))
			table, err := newTable(db, "wax")
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				db.WriteTxn(table).Abort()
			}
		})
	}
}
