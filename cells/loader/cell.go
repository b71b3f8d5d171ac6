package loader

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
)

// Cell is the module.
var Cell = cell.Module("loader", "Programs on their hooks",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newKernel), // traffic control, tcx and nftables; tests put a fake in its place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		newTable,             // only this cell writes
		bpfprograms.NewTable, // the same
		newGeneration,        // the programs, loaded by a start hook and a job
		newOps,
		newVerifier, // whether the kernel is as the rows say
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*attachments.Attachment].ToTable,
		statedb.RWTable[bpfprograms.Program].ToTable,
	),
	cell.Invoke(
		registerController, // devices and endpoints into rows
		registerReconciler, // rows onto hooks
		registerVerify,     // drift into pending rows
		registerLinks,      // the same for links of pods
		registerProtocol,   // what hooks say to each other, once all are new
	),
)
