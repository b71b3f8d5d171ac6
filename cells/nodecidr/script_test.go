package nodecidr

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	agent "github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{agent.Cell, Cell, cell.Provide(
			k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
			sources.NewTable, statedb.RWTable[sources.Source].ToTable,
			nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
		)}
	})
}
