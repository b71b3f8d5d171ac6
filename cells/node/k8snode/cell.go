package k8snode

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/kubernetes/objectwriter"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell writes annotations, conditions and taint removals to the Node object of this node.
var Cell = cell.Module("k8s-node", "Updates of the Node by the agent",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		nodeupdates.NewNodeTable, // only this cell may write
		newSettings,              // checked flags
		func() *pathsState { return &pathsState{} }, // schedule of the writes of the path condition
	),
	cell.Invoke(register),
)

func register(group job.Group, c controller) {
	if c.Client == nil {
		return
	}
	watchdog.AddRetried(group, "update-node", func(ctx context.Context, health cell.Health) error {
		return objectwriter.Loop(ctx, health, c.DB, c.Table, c.pass)
	}, retryMin, retryMax)
}
