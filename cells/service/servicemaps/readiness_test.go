package servicemaps

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// TestReadiness_WaitsForTheMaps: the node is not ready until the kernel has the frontends that are known at the start.
func TestReadiness_WaitsForTheMaps(t *testing.T) {
	t.Parallel()
	f, gate := newFakes(8, 16, 1), make(chan struct{})
	f.services.before = func(bpf.ServiceKey, bpf.Service, bool) { <-gate }
	var (
		db      *statedb.DB
		fronts  statedb.RWTable[*frontends.Frontend]
		monitor *watchdog.Monitor
		first   func(statedb.WriteTxn)
	)
	h := hive.New(celltest.Infrastructure(), driftledger.Cell, agentconfig.Cell,
		cell.Provide(frontends.NewTable, backends.NewTable, frontends.NewStatuses, statedb.RWTable[*frontends.Frontend].ToTable,
			statedb.RWTable[*backends.Backend].ToTable),
		cell.Module("service-maps", "Under test", cell.ProvidePrivate(f.maps), implementation),
		cell.Invoke(func(d *statedb.DB, t statedb.RWTable[*frontends.Frontend], m *watchdog.Monitor) {
			db, fronts, monitor = d, t, m
			txn := db.WriteTxn(fronts)
			defer txn.Commit()
			first = fronts.RegisterInitializer(txn, frontends.FirstInitializer)
		}))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
	unfilled := []string{"the first rows of table frontends"}
	if got := monitor.Lagging(db.ReadTxn()); !slices.Equal(got, unfilled) {
		t.Errorf("before there is a row: %q, want %q", got, unfilled)
	}
	txn := db.WriteTxn(fronts)
	first(txn)
	_, _, _ = fronts.Insert(txn, &frontends.Frontend{Address: frontAddress(1), ID: 1, Service: "shop/web", Status: reconciler.StatusPending()})
	txn.Commit()
	want := "row " + frontAddress(1).String() + " of table frontends to be in the kernel"
	if got := monitor.Lagging(db.ReadTxn()); !slices.Contains(got, want) {
		t.Errorf("before the write: %q, want %q", got, want)
	}
	close(gate)
	for range 1500 {
		if len(monitor.Lagging(db.ReadTxn())) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("after the write: %q", monitor.Lagging(db.ReadTxn()))
}
