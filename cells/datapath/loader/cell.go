package loader

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
)

// Cell loads the datapath programs and attaches them to their hooks.
var Cell = cell.Module("loader", "Programs on their hooks",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newKernel), // traffic control, tcx and nftables; tests replace it with a fake
	implementation,
)

// implementation is the module without its access to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		newTable,             // only this cell writes
		bpfprograms.NewTable, // the same
		newGeneration,        // the programs, loaded by a start hook and a job
		newOps,
		newVerifier, // compares the kernel with the rows
	),
	cell.Provide( // read-only for other cells
		statedb.RWTable[*attachments.Attachment].ToTable,
		statedb.RWTable[bpfprograms.Program].ToTable,
	),
	cell.Invoke(
		registerController, // computes rows from devices and endpoints
		registerReconciler, // attaches the programs of the rows
		registerVerify,     // marks rows pending that differ from the kernel
		registerLinks,      // does the same for links of pods
		registerProtocol,   // raises the protocol between hooks when all hooks run this generation
	),
)
