package nodelist

import (
	"log/slog"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/podpools"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		state := agentconfig.Agent{StateDir: t.TempDir()}
		return []cell.Cell{agentconfig.Cell, podpools.Cell, cell.Module("nodes", "Under test", implementation, cell.ProvidePrivate(
			func(log *slog.Logger) *trustedRanges { return newTrustedRanges(state, log) })), cell.Provide(
			k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
			cilium.NewNodeTable, statedb.RWTable[*cilium.Node].ToTable,
			localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
			sources.NewTable, statedb.RWTable[sources.Source].ToTable,
		)}
	})
}
