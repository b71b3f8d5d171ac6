package pathtest

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
)

// inputs provides the tables of other cells.
var inputs = cell.Provide(
	nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
	overlays.NewTable, statedb.RWTable[*overlays.Overlay].ToTable,
	mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
	devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
	devices.NewRouteTable, statedb.RWTable[*devices.Route].ToTable,
	devices.NewNeighborTable, statedb.RWTable[devices.Neighbor].ToTable,
	flows.NewTable, statedb.RWTable[*flows.Flow].ToTable,
	nodehealth.NewTable, statedb.RWTable[*nodehealth.Path].ToTable,
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		f := newFake()
		return []cell.Cell{agentconfig.Cell, cell.Module("path-test", "Under test", cell.ProvidePrivate(func() kernel { return f }), implementation),
			inputs, cell.Provide(f.commands)}
	})
}
