package nodeidallocator

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// TestController_CollectorPasses_AreNoStall: without a released id, passes of the flow collector do not wake the controller. The watchdog would restart the agent
// if the loop did not react to changes of a table that it names as an input.
func TestController_CollectorPasses_AreNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var monitor *watchdog.Monitor
		var db *statedb.DB
		var all statedb.RWTable[*nodes.Node]
		var ids statedb.Table[*nodeids.NodeID]
		var flows statedb.RWTable[conntrack.Map]
		h := hive.New(append(underTest(newFake()), celltest.Infrastructure(), cell.Invoke(
			func(m *watchdog.Monitor, d *statedb.DB, n statedb.RWTable[*nodes.Node], i statedb.Table[*nodeids.NodeID], c statedb.RWTable[conntrack.Map]) {
				monitor, db, all, ids, flows = m, d, n, i, c
			}))...)
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		h.RegisterFlags(flags)
		log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
		if err := errors.Join(flags.Parse([]string{"--node-name=one", "--state-dir=" + t.TempDir()}), h.Start(log, t.Context())); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Stop(log, context.Background()); err != nil {
				t.Error(err)
			}
		})
		two := &nodes.Node{Name: "two", Source: nodes.Kubernetes}
		change := func(change func(txn statedb.WriteTxn)) {
			txn := db.WriteTxn(all, flows)
			change(txn)
			txn.Commit()
			time.Sleep(time.Second)
		}
		collect := func(txn statedb.WriteTxn) {
			for _, name := range conntrack.FlowMaps() {
				_, _, _ = flows.Insert(txn, conntrack.Map{Name: name, Began: time.Now()})
			}
		}
		change(func(txn statedb.WriteTxn) {
			all.RegisterInitializer(txn, "test")(txn)
			_, _, _ = all.Insert(txn, two)
		})
		change(func(txn statedb.WriteTxn) { _, _, _ = all.Delete(txn, two) })
		if ids.NumObjects(db.ReadTxn()) != 1 {
			t.Fatal("the id does not wait for the collector")
		}
		change(collect)
		if ids.NumObjects(db.ReadTxn()) != 0 {
			t.Fatal("the id is not free after a pass")
		}
		for range 120 {
			change(collect)
			if stalls := monitor.Step(watchdog.Interval, db.ReadTxn()); len(stalls) > 0 {
				t.Fatalf("the agent would be restarted: %+v", stalls)
			}
		}
	})
}
