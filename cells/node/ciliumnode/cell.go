package ciliumnode

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/kubernetes/objectwriter"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell writes the CiliumNode of this node.
var Cell = cell.Module("cilium-node", "The CiliumNode of this node",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(nodeupdates.NewCiliumNodeTable), // only this cell may write
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

func register(group job.Group, p params) {
	if p.Client == nil {
		return
	}
	c := &controller{params: p, machine: thisMachine(p.Agent.Procfs)}
	watchdog.AddRetried(group, "update-cilium-node", func(ctx context.Context, health cell.Health) error {
		return objectwriter.Loop(ctx, health, c.DB, c.Table, c.pass)
	}, retryMin, retryMax)
}
