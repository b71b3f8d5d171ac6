package deviceobserver

import (
	"testing"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/celltest"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		k := newFakeKernel()
		return []cell.Cell{cell.Module("devices", "Devices",
			cell.Config(DefaultConfig),
			cell.ProvidePrivate(func() kernel { return k }),
			cell.Provide(k.command),
			Observer,
		)}
	})
}
