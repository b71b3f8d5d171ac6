package linkreaper

import "github.com/cilium/hive/cell"

// Cell empties the link group of deleted pods. It has a job of its own, so that its slow requests stall nobody.
var Cell = cell.Module("link-reaper", "Deletion of the links of pods that are gone",
	cell.ProvidePrivate(newKernel), // netlink
	Reaper,
)

// Reaper is the cell without its kernel, for tests that bring one of their own.
var Reaper = cell.Invoke(registerReaper)
