package healthreport

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/health"
)

// Cell provides the health reporters and the tables health and bootstrap.
var Cell = cell.Module("health", "Health of modules and duration of start hooks",
	cell.ProvidePrivate(tables.NewTable, tables.NewBootstrapTable), // only this cell writes them
	cell.Provide(
		statedb.RWTable[tables.Status].ToTable,
		statedb.RWTable[tables.Hook].ToTable,
		newSource, // reporters of all modules
	),
	cell.Invoke(registerBootstrap),
)
