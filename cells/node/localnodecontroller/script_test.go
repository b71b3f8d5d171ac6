package localnodecontroller

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{agentconfig.Cell, Cell, cell.Provide(
			nodecidrs.NewTable, statedb.RWTable[nodecidrs.Candidate].ToTable,
			nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
			ipamaddresses.NewTable, statedb.RWTable[ipamaddresses.Address].ToTable,
		)}
	})
}
