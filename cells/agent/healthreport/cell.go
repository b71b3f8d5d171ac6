package healthreport

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/health"
)

// Cell provides the health reporters and the tables health and bootstrap.
var Cell = cell.Module("health", "Health of modules and duration of start hooks",
	cell.ProvidePrivate(health.NewTable, health.NewBootstrapTable, newSource), // only this cell writes the tables
	cell.Provide(
		statedb.RWTable[health.Status].ToTable,
		statedb.RWTable[health.Hook].ToTable,
		func(s *source) hive.HealthSource { return s }, // reporters of all modules
	),
	cell.Invoke(registerPublisher, registerBootstrap),
)
