package healthreport

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/health"
)

// Cell provides the health reporters and the tables health and bootstrap.
var Cell = cell.Module("health", "Health of modules and duration of start hooks",
	cell.ProvidePrivate(health.NewTable, health.NewBootstrapTable), // only this cell writes them
	cell.Provide(
		statedb.RWTable[health.Status].ToTable,
		statedb.RWTable[health.Hook].ToTable,
		newSource, // reporters of all modules
	),
	cell.Invoke(registerBootstrap),
)
