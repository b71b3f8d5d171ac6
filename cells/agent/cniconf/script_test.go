package cniconf

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// inputs are the tables that other cells write; the scripts act as those cells.
func inputs() cell.Cell {
	return cell.Provide(
		func() agentconfig.Agent { return agentconfig.Agent{StateDir: "/run/w"} },
		sources.NewTable, statedb.RWTable[sources.Source].ToTable,
		localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
		mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
		endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
		attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
		desireddevices.NewTable, statedb.RWTable[*desireddevices.Device].ToTable,
		desiredroutes.NewTable, statedb.RWTable[*desiredroutes.Route].ToTable,
		sysctls.NewTable, statedb.RWTable[*sysctls.Setting].ToTable,
		bpfendpoints.NewAddressTable, statedb.RWTable[*bpfendpoints.Address].ToTable,
		health.NewTable, statedb.RWTable[health.Status].ToTable,
		configs.NewTable, statedb.RWTable[configs.Config].ToTable,
	)
}

func TestScripts(t *testing.T) {
	defer goleak.VerifyNone(t)
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return []cell.Cell{Cell, inputs()} })
}
