package servicehealth

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Services without a health check node port do not wake the loop, and the watchdog does not report the loop as stalled.
func TestController_ServicesWithoutAPort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, monitor := statedb.New(), watchdog.NewMonitor()
		table, err := services.NewTable(db)
		require.NoError(t, err)
		computed, err := newTable(db)
		require.NoError(t, err)
		ctx, end := watchdog.Begin(t.Context(), watchdog.NewGroup(nil, monitor, cell.FullModuleID{"under-test"}), "compute-ports")
		defer end()
		c := &controller{DB: db, Ports: computed, Services: table}
		health, _ := cell.NewSimpleHealth()
		go func() { _ = c.run(ctx, health) }()
		time.Sleep(time.Minute)
		txn := db.WriteTxn(table)
		_, _, err = table.Insert(txn, &services.Service{Name: "a/without"})
		require.NoError(t, err)
		txn.Commit()
		for range time.Minute / watchdog.Interval {
			time.Sleep(watchdog.Interval)
			require.Empty(t, monitor.Step(watchdog.Interval, db.ReadTxn()))
		}
	})
}
