package selftest

import (
	"testing"

	"github.com/cilium/hive/cell"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
)

func TestScripts(t *testing.T) {
	defer goleak.VerifyNone(t)
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		kernel := cell.ProvidePrivate(func() bootID { return func() (string, error) { return "this-boot", nil } })
		return []cell.Cell{agentconfig.Cell, cell.Module("self-test", "Under test", kernel, implementation)}
	})
}
