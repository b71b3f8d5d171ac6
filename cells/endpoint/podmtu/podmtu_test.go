package podmtu

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		fake := newFakeKernel()
		return []cell.Cell{
			agentconfig.Cell,
			cell.Provide(
				mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
				endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
				devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
				fake.commands,
			),
			cell.Module("pod-mtu", "Under test", cell.ProvidePrivate(func() kernel { return fake }), implementation),
		}
	})
}
