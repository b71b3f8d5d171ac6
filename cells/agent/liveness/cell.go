package liveness

import (
	"context"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell steps the monitor, and records stalls.
var Cell = cell.Module("liveness", "Watchdog of loops rows and transactions",
	cell.Provide(
		watchdog.NewMonitor, // used by the job groups of all modules
		commands,            // the command "liveness"
	),
	cell.Invoke(register),
)

// Transactions provides the write transactions to the monitor in a role without metrics.
var Transactions = cell.Provide(func(m *watchdog.Monitor) statedb.Metrics { return m.Transactions(&statedb.NopMetrics{}) })

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	DB        *statedb.DB
	Monitor   *watchdog.Monitor
	Settings  agentconfig.Agent `optional:"true"` // zero in the role without state on disk
}

// stepper steps the monitor in one job and writes records in another one, because writing may stall as well.
type stepper struct {
	params
	found chan []watchdog.Stall
}

func register(p params) {
	j := &stepper{params: p, found: make(chan []watchdog.Stall, 1)}
	p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		j.logPreviousStall()
		return nil
	}})
	watchdog.Add(p.Jobs, "evaluate", j.run)
	freeze(p)
	watchdog.Add(p.Jobs, "write-down", j.writeDown)
}

// run steps the monitor. It makes no blocking call.
func (j *stepper) run(ctx context.Context, _ cell.Health) error {
	watchdog.Idle(ctx) // the monitor cannot detect a stall of its own loop; readers of the verdict check its age
	tick := time.NewTicker(watchdog.Interval)
	defer tick.Stop()
	reported := false // a stall was passed on
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		stalls := j.Monitor.Step(now.Sub(last), j.DB.ReadTxn())
		last = now
		if len(stalls) == 0 && !reported {
			continue // do not wake the other job each second without a stall
		}
		select {
		case j.found <- stalls:
			reported = len(stalls) > 0
		default: // the other job is busy; the next step finds the same stall
		}
	}
}
