package ipcachemaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
)

// Cell merges claims of identities and writes them to the ipcache maps.
var Cell = cell.Module("ipcache", "Identities of prefixes",
	cell.ProvidePrivate(newKernel), // the real maps; tests provide a fake
	implementation,
)

// implementation is the module without its kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		ipcache.NewTable,       // only this cell writes
		refusedclaims.NewTable, // likewise
		newWriter,              // claims of all owners, and the winners as rows
		newReplaced,
		newOps,
		newReconciler, // writes rows to the maps
		newVerifier,   // verifies that the maps match the rows
	),
	cell.Provide(
		statedb.RWTable[*ipcache.Entry].ToTable, // read by other cells
		statedb.RWTable[refusedclaims.Refused].ToTable,
		func(w *writer) ipcache.Writer { return w }, // other cells contribute claims
	),
	cell.Invoke(
		registerEndpoints, // claims addresses of local endpoints
		registerRemote,    // claims addresses of pods of other nodes
		registerFollower,  // marks rows pending when the id or address of their node changes
		registerVerify,    // marks rows pending after drift
	),
)
