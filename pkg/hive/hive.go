// Package hive creates the hives of this project, for the agent and for tests of cells. It sets the prefix of environment
// variables and the timeouts, and provides the objects that are private to each module.
package hive

import (
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// EnvPrefix is the prefix of a flag's name in the environment, with the underscore.
const EnvPrefix = "WAGGLE_"

const (
	// startTimeout limits the time of all start hooks together. No hook waits for another machine, but the kernel's verifier is slow
	// if the CPU is emulated or busy, and a restart would only lose the completed work. Kubelet's startup probe and Cilium's agent
	// have the same limit.
	startTimeout = 5 * time.Minute
	// stopTimeout leaves one second of the 5 s that the process may take after SIGTERM; after the timeout the remaining hooks are
	// skipped. The agent sets its own timeout, which depends on --stop-timeout and has this value by default.
	stopTimeout = 4 * time.Second
	// slowHook is the minimum duration of a hook that is logged.
	slowHook = 500 * time.Millisecond
)

// HealthSource creates the health reporter of a module. The agent's implementation writes a table; tests have one in memory.
type HealthSource interface {
	ForModule(id cell.FullModuleID) cell.Health
}

// New returns a hive with the given cells. One of the cells must provide a [HealthSource].
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

// jobParams holds the dependencies of a module's job group. Metrics and monitor are absent in tests of cells.
type jobParams struct {
	cell.In

	Registry job.Registry
	Health   cell.Health
	Metrics  job.Metrics       `optional:"true"`
	Monitor  *watchdog.Monitor `optional:"true"`
	Module   cell.FullModuleID
}

func newJobs(p jobParams) job.Group {
	group := p.Registry.NewGroup(p.Health)
	if p.Metrics != nil {
		group = p.Registry.NewGroup(p.Health, job.WithMetrics(p.Metrics))
	}
	return watchdog.NewGroup(group, p.Monitor, p.Module)
}
