package localnodecontroller

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell computes the row of this node. It is the only writer of the table local-node.
var Cell = cell.Module("local-node", "This node as one row",
	cell.ProvidePrivate(localnode.NewTable), // only this cell may write
	cell.Provide(statedb.RWTable[*localnode.LocalNode].ToTable),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

func register(group job.Group, p params) {
	c := newController(p)
	watchdog.AddRetried(group, "describe-node", c.run, retryMin, retryMax)
}
