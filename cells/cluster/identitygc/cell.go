package identitygc

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/identityrounds"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell deletes unused CiliumIdentities.
var Cell = cell.Module("identity-gc", "Removal of unused CiliumIdentities",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(identityrounds.NewTable), // only this cell may write
	cell.Provide(statedb.RWTable[identityrounds.Round].ToTable),
	cell.Invoke(register), // job: rounds while this replica leads
)

// Config configures the interval, the timeout and the deletion limit.
type Config struct {
	Interval time.Duration `mapstructure:"identity-gc-interval"`
	Timeout  time.Duration `mapstructure:"identity-heartbeat-timeout"`
	// Deletions are at most Limit in each LimitInterval.
	Limit         int           `mapstructure:"identity-gc-rate-limit"`
	LimitInterval time.Duration `mapstructure:"identity-gc-rate-interval"`
}

// DefaultConfig has Cilium's defaults.
var DefaultConfig = Config{Interval: 15 * time.Minute, Timeout: 30 * time.Minute, Limit: 2500, LimitInterval: time.Minute}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("identity-gc-interval", c.Interval, "Time between two scans for unused CiliumIdentities; 0 disables the scans")
	flags.Duration("identity-heartbeat-timeout", c.Timeout, "Time after which a CiliumIdentity to which no CiliumEndpoint refers is deleted")
	flags.Int("identity-gc-rate-limit", c.Limit, "Maximum number of CiliumIdentities that are deleted in --identity-gc-rate-interval")
	flags.Duration("identity-gc-rate-interval", c.LimitInterval, "Interval of --identity-gc-rate-limit")
}

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Leadership statedb.Table[leadership.Leadership]
	Rounds     statedb.RWTable[identityrounds.Round]
	Config     Config
	Client     *kubeapi.Client
}

func register(group job.Group, p params) error {
	switch {
	case p.Config.Interval < 0:
		return fmt.Errorf("--identity-gc-interval=%s: must not be negative", p.Config.Interval)
	case p.Config.Timeout <= 0:
		return fmt.Errorf("--identity-heartbeat-timeout=%s: must be positive", p.Config.Timeout)
	case p.Config.Limit <= 0 || p.Config.LimitInterval <= 0:
		return fmt.Errorf("--identity-gc-rate-limit=%d, --identity-gc-rate-interval=%s: both must be positive", p.Config.Limit, p.Config.LimitInterval)
	case p.Client == nil || p.Config.Interval == 0:
		return nil
	}
	watchdog.AddRetried(group, "collect", newCollector(p).run, time.Second, time.Minute)
	return nil
}
