package nodeids

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{settings.Cell, Cell, cell.Provide(
			nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
			conntrack.NewTable, statedb.RWTable[conntrack.Map].ToTable,
		)}
	})
}
