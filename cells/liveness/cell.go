package liveness

import (
	"context"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
)

// Cell judges.
var Cell = cell.Module("liveness", "Loops rows and transactions that hang",
	cell.Provide(
		heartbeat.NewMonitor, // the job groups of all modules ask for it
		commands,             // "liveness"
	),
	cell.Invoke(register),
)

// Transactions lets the monitor see write transactions in a role that has no metrics.
var Transactions = cell.Provide(func(m *heartbeat.Monitor) statedb.Metrics { return m.Transactions(&statedb.NopMetrics{}) })

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	DB        *statedb.DB
	Monitor   *heartbeat.Monitor
	Settings  settings.Agent `optional:"true"` // absent in the role that has no state on disk
}

// judge is the one who looks, apart from the one who writes down what he sees: writing may hang as well.
type judge struct {
	params
	found chan []heartbeat.Wedge
}

func register(p params) {
	j := &judge{params: p, found: make(chan []heartbeat.Wedge, 1)}
	p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		j.sayWhyTheLastRunEnded()
		return nil
	}})
	heartbeat.Add(p.Jobs, "judge", j.run)
	freezeTables(p)
	heartbeat.Add(p.Jobs, "write-down", j.writeDown)
}

// run steps the monitor. It calls nothing that could wait.
func (j *judge) run(ctx context.Context, _ cell.Health) error {
	heartbeat.Idle(ctx) // it cannot judge itself; whoever reads the verdict looks at its age
	tick := time.NewTicker(heartbeat.Interval)
	defer tick.Stop()
	told := false // that something hangs
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		wedges := j.Monitor.Step(now.Sub(last), j.DB.ReadTxn())
		last = now
		if len(wedges) == 0 && !told {
			continue // the other is not woken each second for nothing
		}
		select {
		case j.found <- wedges:
			told = len(wedges) > 0
		default: // what is found in the next step is as good
		}
	}
}
