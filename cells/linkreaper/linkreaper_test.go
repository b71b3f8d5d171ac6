package linkreaper

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			cell.Provide(
				devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
				newFakeKernel,
				func(k *fakeKernel) kernel { return k },
				(*fakeKernel).commands,
			),
			cell.Module("link-reaper", "Link reaper", Reaper),
		}
	})
}
