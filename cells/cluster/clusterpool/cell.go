package clusterpool

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/tables/podcidrpool"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell assigns pod CIDRs to nodes.
var Cell = cell.Module("cluster-pool", "Pod CIDRs of all nodes",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		podcidrpool.NewTable, // only this cell may write
		newSettings,          // checked flags
	),
	cell.Provide(statedb.RWTable[podcidrpool.CIDR].ToTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Table      statedb.RWTable[podcidrpool.CIDR]
	Leadership statedb.Table[leadership.Leadership]
	Settings   settings
	Client     *kubeapi.Client
}

const (
	retryMin = 500 * time.Millisecond
	retryMax = 10 * time.Second
)

func register(group job.Group, p params) {
	if p.Client == nil || len(p.Settings.families) == 0 {
		return
	}
	watchdog.AddRetried(group, "give-cidrs", newAllocator(p).run, retryMin, retryMax)
}
