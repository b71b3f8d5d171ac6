package metrics

import (
	"fmt"
	"net"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell collects the Prometheus metrics of the agent and serves them.
var Cell = cell.Module("metrics", "Prometheus metrics",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newRegistry, // registry of all metrics
		newCounters, // reads the counters of the datapath
		newGuard,    // reads the counters of the nftables rules
	),
	cell.Provide(newInstruments),  // counters for hive, jobs, statedb and reconcilers
	cell.Provide(Config.listener), // port that no Service may use
	cell.Invoke(registerTables, registerNodes, registerNodeHealth, registerServer),
)

// Config configures the address of the metrics server.
type Config struct {
	PrometheusServeAddr string `mapstructure:"prometheus-serve-addr"`
}

// DefaultConfig serves nothing.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("prometheus-serve-addr", c.PrometheusServeAddr,
		"Address (host:port) on which metrics are served at /metrics; empty disables the server")
}

func (c Config) listener() agentconfig.ListenerOut {
	return agentconfig.NewListener("prometheus-serve-addr", c.PrometheusServeAddr)
}

func (c Config) enabled() bool { return c.PrometheusServeAddr != "" }

func (c Config) check() error {
	if !c.enabled() {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.PrometheusServeAddr); err != nil {
		return fmt.Errorf("--prometheus-serve-addr=%q: want host:port, such as :9962: %w", c.PrometheusServeAddr, err)
	}
	return nil
}

// instruments are optional in hive's dependency injection, but the libraries call them even if they are nil. So each has an implementation without
// effect.
type instruments struct {
	cell.Out

	Hive       upstream.Metrics
	Jobs       job.Metrics
	StateDB    statedb.Metrics
	Reconciler reconciler.Metrics
}

// watched has the monitor of write transactions; nil in tests of this cell.
type watched struct {
	cell.In

	Monitor *watchdog.Monitor `optional:"true"`
}

func newInstruments(c Config, registry *registry, w watched) (instruments, error) {
	if err := c.check(); err != nil {
		return instruments{}, err
	}
	if !c.enabled() {
		return instruments{Hive: upstream.NopMetrics{}, Jobs: job.NopMetrics{}, StateDB: w.Monitor.Transactions(&statedb.NopMetrics{}),
			Reconciler: noReconciler{}}, nil
	}
	return instruments{Hive: newHive(registry), Jobs: newJobs(registry), StateDB: w.Monitor.Transactions(newStateDB(registry)),
		Reconciler: newReconciler(registry)}, nil
}
