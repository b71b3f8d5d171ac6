package k8snode

import (
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/selftests"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// inputs are the tables that other cells write; the scripts act as those cells.
func inputs(client *kubeapi.Client) cell.Cell {
	return cell.Provide(
		func() *kubeapi.Client { return client },
		func() agentconfig.Agent {
			return agentconfig.Agent{NodeName: "one", HealthChecking: true, TunnelPort: 8472}
		},
		k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
		selftests.NewTable, statedb.RWTable[selftests.SelfTest].ToTable,
		sources.NewTable, statedb.RWTable[sources.Source].ToTable,
		localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
		mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
		endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
		attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
		desireddevices.NewTable, statedb.RWTable[*desireddevices.Device].ToTable,
		desiredroutes.NewTable, statedb.RWTable[*desiredroutes.Route].ToTable,
		sysctls.NewTable, statedb.RWTable[*sysctls.Setting].ToTable,
		bpfendpoints.NewAddressTable, statedb.RWTable[*bpfendpoints.Address].ToTable,
		pathtests.NewTable, statedb.RWTable[*pathtests.Test].ToTable,
		health.NewTable, statedb.RWTable[health.Status].ToTable,
	)
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		server := kubetest.New(t, kubetest.InMemory())
		return []cell.Cell{Cell, inputs(server.Client(t)), cell.Provide(func() hive.ScriptCmdsOut { return server.Commands(t) })}
	})
}

// TestScripts_Off has no API server: the cell writes nothing and reports nothing.
func TestScripts_Off(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/off/*.txtar", func(testing.TB) []cell.Cell { return []cell.Cell{Cell, inputs(nil)} })
}
