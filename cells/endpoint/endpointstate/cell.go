package endpointstate

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell writes the table endpoint-states.
var Cell = cell.Module("endpoint-state", "States of endpoints",
	cell.ProvidePrivate(newTable), // only this cell writes endpoint-states
	cell.Provide(
		statedb.RWTable[*endpointstates.EndpointState].ToTable,
		commands,
	),
	cell.Invoke(registerController), // job: computes states from endpoints and the rows of the datapath
)

// initialize completes the initializer of the table.
type initialize func(statedb.WriteTxn)

func newTable(db *statedb.DB) (statedb.RWTable[*endpointstates.EndpointState], initialize, error) {
	table, err := endpointstates.NewTable(db)
	if err != nil {
		return nil, nil, err
	}
	txn := db.WriteTxn(table)
	defer txn.Abort()
	done := table.RegisterInitializer(txn, "endpoint-state")
	txn.Commit()
	return table, done, nil
}

func registerController(jobs job.Group, p params, done initialize) {
	c := &controller{params: p, initialize: done}
	watchdog.AddRetried(jobs, "follow-endpoints", c.run, 100*time.Millisecond, time.Minute)
}
