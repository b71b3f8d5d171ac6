package monitor

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/drops"
	"github.com/waggle-net/waggle/pkg/tables/flows"
)

// Cell is the module.
var Cell = cell.Module("monitor", "Events of the datapath",
	cell.ProvidePrivate( // tests put fakes in their place
		newSource,    // the ring buffer
		newExplainer, // why policies refuse a packet
	),
	implementation,
)

// implementation is the module without its way to the kernel and to the policies.
var implementation = cell.Group(
	cell.Config(defaultConfig),
	cell.ProvidePrivate(
		drops.NewTable, // only this cell writes
		flows.NewTable,
		newHub,    // listeners and their queues
		newLedger, // counts flows
		newPump,   // from the ring buffer to all of these
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*drops.Drop].ToTable,
		statedb.RWTable[*flows.Flow].ToTable,
	),
	cell.Invoke(
		registerServer, // the socket
		registerReader, // ring buffer to tables and hub
	),
)
