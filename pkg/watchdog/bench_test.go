package watchdog_test

import (
	"context"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// BenchmarkStep checks as many loops as the agent has, with tables of 1,000 unchanged rows.
func BenchmarkStep(b *testing.B) {
	m := watchdog.NewMonitor()
	db := statedb.New(statedb.WithMetrics(m.Transactions(&statedb.NopMetrics{})))
	for range 60 {
		_ = watchdog.WatchedTimer(watchdog.NewGroup(nil, m, cell.FullModuleID{"bench"}), "x", nil, time.Hour)
	}
	for b.Loop() {
		m.Step(0, db.ReadTxn())
	}
}

func BenchmarkBusyIdle(b *testing.B) {
	m := watchdog.NewMonitor()
	ctx, end := watchdog.Begin(context.Background(), watchdog.NewGroup(nil, m, cell.FullModuleID{"bench"}), "x")
	defer end()
	for b.Loop() {
		watchdog.Busy(ctx)
		watchdog.Idle(ctx)
	}
}

func BenchmarkWriteTxn(b *testing.B) {
	for name, metrics := range map[string]statedb.Metrics{"plain": &statedb.NopMetrics{}, "watched": watchdog.NewMonitor().Transactions(&statedb.NopMetrics{})} {
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
