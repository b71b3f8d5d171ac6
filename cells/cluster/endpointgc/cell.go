package endpointgc

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/tables/staleobjects"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell deletes stale CiliumEndpoints and CiliumNodes.
var Cell = cell.Module("endpoint-gc", "Removal of stale CiliumEndpoints and CiliumNodes",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(staleobjects.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[staleobjects.Object].ToTable),
	cell.Invoke(register),
)

// Config configures the interval of rounds.
type Config struct {
	Interval time.Duration `mapstructure:"cilium-endpoint-gc-interval"`
}

// DefaultConfig holds the default interval.
var DefaultConfig = Config{Interval: 5 * time.Minute}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("cilium-endpoint-gc-interval", c.Interval, "Time between two scans for stale CiliumEndpoints and CiliumNodes; 0 disables the scans")
}

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Table      statedb.RWTable[staleobjects.Object]
	Leadership statedb.Table[leadership.Leadership]
	Config     Config
	Client     *kubeapi.Client
}

func register(group job.Group, p params) error {
	if p.Config.Interval < 0 {
		return fmt.Errorf("--cilium-endpoint-gc-interval=%s: must not be negative", p.Config.Interval)
	}
	if p.Client == nil || p.Config.Interval == 0 {
		return nil
	}
	c := &collector{params: p}
	watchdog.AddRetried(group, "collect", c.run, time.Second, time.Minute)
	return nil
}
