// Package hive holds what every hive of this project has in common, the agent's and those of cell tests: the prefix of
// environment variables, time-outs, and the objects that each module gets for itself.
package hive

import (
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// EnvPrefix stands before the name of a flag in the environment; its underscore belongs to it.
const EnvPrefix = "WAGGLE_"

const (
	// startTimeout bounds all start hooks together. No hook waits for anything remote, but the kernel's verifier is slow where the
	// CPU is emulated or busy, and a restart would only lose the work done so far. Kubelet's startup probe has the same limit, as
	// has Cilium's agent.
	startTimeout = 5 * time.Minute
	// stopTimeout leaves a second of the 5 that a SIGTERM may take; on expiry the remaining hooks are skipped. The agent sets its
	// own, which follows --stop-timeout and has this value by default.
	stopTimeout = 4 * time.Second
	// slowHook is the duration from which a hook deserves a line in the log.
	slowHook = 500 * time.Millisecond
)

// HealthSource makes the health reporter of a module. The agent has one that writes a table; tests have one in memory.
type HealthSource interface {
	ForModule(id cell.FullModuleID) cell.Health
}

// New makes a hive from cells. One of them must provide a [HealthSource].
func New(cells ...cell.Cell) *upstream.Hive {
	return upstream.NewWithOptions(upstream.Options{
		EnvPrefix:    EnvPrefix,
		StartTimeout: startTimeout,
		StopTimeout:  stopTimeout,
		LogThreshold: slowHook,
		ModulePrivateProviders: cell.ModulePrivateProviders{
			func(source HealthSource, id cell.FullModuleID) cell.Health { return source.ForModule(id) },
			newJobs,
		},
	}, cells...)
}

// jobParams is what a module's job group is made from; metrics and monitor are absent in tests of cells.
type jobParams struct {
	cell.In

	Registry job.Registry
	Health   cell.Health
	Metrics  job.Metrics        `optional:"true"`
	Monitor  *heartbeat.Monitor `optional:"true"`
	Module   cell.FullModuleID
}

func newJobs(p jobParams) job.Group {
	group := p.Registry.NewGroup(p.Health)
	if p.Metrics != nil {
		group = p.Registry.NewGroup(p.Health, job.WithMetrics(p.Metrics))
	}
	return heartbeat.NewGroup(group, p.Monitor, p.Module)
}
