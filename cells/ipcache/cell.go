package ipcache

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
)

// Cell is the module.
var Cell = cell.Module("ipcache", "Identities behind prefixes",
	cell.ProvidePrivate(newKernel), // the real maps; tests put a fake in its place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		ipcachetable.NewTable,  // only this cell writes
		refusedclaims.NewTable, // likewise
		newWriter,              // claims by owner, and what remains of them in the table
		newReplaced,
		newOps,
		newReconciler, // rows into the maps
		newVerifier,   // whether they are still there
	),
	cell.Provide(
		statedb.RWTable[*ipcachetable.Entry].ToTable, // anyone may read
		statedb.RWTable[refusedclaims.Refused].ToTable,
		func(w *writer) ipcachetable.Writer { return w }, // anyone may claim
	),
	cell.Invoke(
		registerEndpoints, // local endpoints as claims
		registerRemote,    // pods of other nodes as claims
		registerFollower,  // ids of nodes into pending rows
		registerVerify,    // drift into pending rows
	),
)
