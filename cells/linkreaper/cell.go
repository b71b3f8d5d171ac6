package linkreaper

import "github.com/cilium/hive/cell"

// Cell empties the link group of deleted pods, and finds the links that no endpoint has. Each has a job of its own, so that
// slow requests stall nobody.
var Cell = cell.Module("link-reaper", "Deletion of the links of pods that are gone",
	cell.ProvidePrivate(newKernel), // netlink
	Reaper,
)

// Reaper is the cell without its kernel, for tests that bring one of their own.
var Reaper = cell.Group(
	cell.Config(DefaultConfig),
	cell.Invoke(registerReaper, registerCollector),
)
