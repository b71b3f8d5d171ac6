package nodehealthprober

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// underTest returns the module with a fake network.
func underTest(f *fake) cell.Cell {
	return cell.Group(
		agentconfig.Cell,
		cell.Module("node-health", "Under test",
			cell.ProvidePrivate(
				func() kernel { return f },
				func() self {
					return func() models.Status { return models.Status{State: models.StatusStateOk, Msg: "1.2"} }
				},
			),
			implementation),
		cell.Provide(nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable, nodetraffic.NewTable, statedb.RWTable[*nodetraffic.Traffic].ToTable),
	)
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		f := newFake()
		return []cell.Cell{underTest(f), cell.Provide(f.commands)}
	})
}
