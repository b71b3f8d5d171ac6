package policyevents

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell creates Events about policies that exceed limits of this node.
var Cell = cell.Module("policy-events", "Events of policies that exceed limits of this node",
	cell.Invoke(register),
)

func register(group job.Group, p params) {
	if p.Client == nil {
		return
	}
	watchdog.Add(group, "create-policy-events", newController(p).run)
}
