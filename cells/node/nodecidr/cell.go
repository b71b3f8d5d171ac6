package nodecidr

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell chooses the pod CIDRs of this node. It is the only writer of the table node-cidrs.
var Cell = cell.Module("node-cidr", "Pod CIDRs of this node",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		nodecidrs.NewTable, // only this cell may write
		newSettings,        // checked flags
	),
	cell.Provide(statedb.RWTable[nodecidrs.Candidate].ToTable),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

func register(group job.Group, p params) {
	c := newController(p)
	watchdog.AddRetried(group, "choose-cidrs", c.run, retryMin, retryMax)
}
