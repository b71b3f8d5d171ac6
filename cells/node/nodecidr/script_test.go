package nodecidr

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "testdata/*.txtar", nil)
	scripts(t, "testdata/apiserver/*.txtar", online(t))
}

// scripts runs the cell with or without an API server.
func scripts(t *testing.T, glob string, client *kubeapi.Client) {
	t.Helper()
	celltest.Run(t, glob, func(testing.TB) []cell.Cell {
		return []cell.Cell{agentconfig.Cell, Cell, cell.Provide(
			func() *kubeapi.Client { return client },
			cilium.NewNodeTable, statedb.RWTable[*cilium.Node].ToTable,
			k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
			sources.NewTable, statedb.RWTable[sources.Source].ToTable,
			nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
		)}
	})
}
