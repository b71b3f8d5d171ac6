package identitygc

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// Cell collects garbage.
var Cell = cell.Module("identity-gc", "Removal of CiliumIdentities that nobody has",
	cell.Config(DefaultConfig),
	cell.Invoke(register), // job: rounds while this replica leads
)

// Config is what was typed.
type Config struct {
	Interval time.Duration `mapstructure:"identity-gc-interval"`
	Timeout  time.Duration `mapstructure:"identity-heartbeat-timeout"`
}

// DefaultConfig are the defaults, which are Cilium's.
var DefaultConfig = Config{Interval: 15 * time.Minute, Timeout: 30 * time.Minute}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("identity-gc-interval", c.Interval, "Time between two looks for CiliumIdentities that nobody has; 0 never looks")
	flags.Duration("identity-heartbeat-timeout", c.Timeout, "After how long without a CiliumEndpoint that has it a CiliumIdentity is deleted")
}

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Leadership statedb.Table[leadership.Leadership]
	Config     Config
	Client     *kubeapi.Client
}

func register(group job.Group, p params) error {
	switch {
	case p.Config.Interval < 0:
		return fmt.Errorf("--identity-gc-interval=%s: must not be negative", p.Config.Interval)
	case p.Config.Timeout <= 0:
		return fmt.Errorf("--identity-heartbeat-timeout=%s: must be positive", p.Config.Timeout)
	case p.Client == nil || p.Config.Interval == 0:
		return nil
	}
	heartbeat.AddRetried(group, "collect", newCollector(p).run, time.Second, time.Minute)
	return nil
}
