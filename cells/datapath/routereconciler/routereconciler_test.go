package routereconciler

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			cell.Provide(
				devices.NewTable, devices.NewRouteTable, devices.NewAddressTable, statedb.RWTable[devices.Address].ToTable,
				statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[*devices.Route].ToTable,
				newFakeKernel,
				func(k *fakeKernel) kernel { return k },
				(*fakeKernel).commands,
			),
			driftledger.Cell,
			cell.Module("desired-routes", "Desired routes", Reconciler,
				cell.Invoke(func(w desiredroutes.Writer) { w.Expect("pods") })),
		}
	})
}
