package localnodecontroller

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
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
	heartbeat.AddRetried(group, "describe-node", c.run, retryMin, retryMax)
}
