package selftest

import (
	"testing"

	"github.com/cilium/hive/cell"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/settings"
)

func TestScripts(t *testing.T) {
	defer goleak.VerifyNone(t)
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		kernel := cell.ProvidePrivate(func() bootID { return func() (string, error) { return "this-boot", nil } })
		return []cell.Cell{settings.Cell, cell.Module("self-test", "Under test", kernel, implementation)}
	})
}
