package linkreaper

import "github.com/cilium/hive/cell"

// Cell deletes the link group of deleted pods, and links without an endpoint. The two jobs are separate, so that slow requests of one do not delay the other.
var Cell = cell.Module("link-reaper", "Deletion of the links of deleted pods",
	cell.ProvidePrivate(newKernel), // netlink
	Reaper,
)

// Reaper is the cell without the access to netlink, for tests with a fake kernel.
var Reaper = cell.Group(
	cell.Config(DefaultConfig),
	cell.Invoke(registerReaper, registerCollector),
)
