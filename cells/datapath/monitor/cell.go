package monitor

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/drops"
	"github.com/waggle-net/waggle/pkg/tables/flows"
)

// Cell reads the events of the datapath, keeps drops and flows in tables, and serves the monitor socket.
var Cell = cell.Module("monitor", "Events of the datapath",
	cell.ProvidePrivate( // tests replace these with fakes
		newSource,    // the ring buffer
		newExplainer, // why policies deny a packet
	),
	implementation,
)

// implementation is the module without the ring buffer and the explainer of policies.
var implementation = cell.Group(
	cell.Config(defaultConfig),
	cell.ProvidePrivate(
		drops.NewTable, // only this cell writes
		flows.NewTable,
		newHub,    // listeners and their queues
		newLedger, // counts flows
		newPump,   // moves events from the ring buffer to the tables, the hub and the ledger
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*drops.Drop].ToTable,
		statedb.RWTable[*flows.Flow].ToTable,
	),
	cell.Invoke(
		registerServer, // the socket
		registerReader, // runs the pump
	),
)
