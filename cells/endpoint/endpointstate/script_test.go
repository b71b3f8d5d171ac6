package endpointstate

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// inputs provides the tables of other cells, which scripts fill.
func inputs() cell.Cell {
	return cell.Provide(
		endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
		bpfendpoints.NewFactsTable, statedb.RWTable[*bpfendpoints.Facts].ToTable,
		bpfendpoints.NewLinkTable, statedb.RWTable[*bpfendpoints.Link].ToTable,
		bpfendpoints.NewAddressTable, statedb.RWTable[*bpfendpoints.Address].ToTable,
		identities.NewEndpointTable, statedb.RWTable[*identities.EndpointIdentity].ToTable,
		endpointpolicies.NewTable, statedb.RWTable[*endpointpolicies.EndpointPolicy].ToTable,
		ipcache.NewTable, statedb.RWTable[*ipcache.Entry].ToTable,
		attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
	)
}

func TestScripts(t *testing.T) {
	defer goleak.VerifyNone(t)
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return []cell.Cell{Cell, inputs()} })
}
