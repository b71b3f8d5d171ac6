package linkreaper

import (
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// newEndpoints creates a table that is initialized by the script.
func newEndpoints(db *statedb.DB) (statedb.RWTable[*endpoints.Endpoint], hive.ScriptCmdsOut, error) {
	table, err := endpoints.NewTable(db)
	if err != nil {
		return nil, hive.ScriptCmdsOut{}, err
	}
	txn := db.WriteTxn(table)
	done := table.RegisterInitializer(txn, "test")
	txn.Commit()
	return table, hive.NewScriptCmds(map[string]script.Cmd{
		"endpoints-known": script.Command(script.CmdUsage{Summary: "complete the table endpoints"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				txn := db.WriteTxn(table)
				done(txn)
				txn.Commit()
				return nil, nil
			}),
	}), nil
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			cell.Provide(
				devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
				newEndpoints, statedb.RWTable[*endpoints.Endpoint].ToTable,
				newFakeKernel,
				func(k *fakeKernel) kernel { return k },
				(*fakeKernel).commands,
			),
			cell.Module("link-reaper", "Link reaper", Reaper),
		}
	})
}
