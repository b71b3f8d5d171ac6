package ipmasqagent

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell follows the configuration file of the ip-masq-agent.
var Cell = cell.Module("ip-masq-agent", "Configuration file of the ip-masq-agent",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(masquerade.NewIPMasqTable, newInitializer), // only this cell writes
	cell.Provide(statedb.RWTable[masquerade.IPMasq].ToTable),       // anyone may read
	cell.Invoke(register),
)

// Config configures the path of the file. The names of the flags are Cilium's.
type Config struct {
	Enabled bool   `mapstructure:"enable-ip-masq-agent"`
	Path    string `mapstructure:"ip-masq-agent-config-path"`
}

// DefaultConfig reads no file.
var DefaultConfig = Config{Path: "/etc/config/ip-masq-agent"}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-ip-masq-agent", c.Enabled, "Exclude the prefixes in the configuration file of the ip-masq-agent from masquerading")
	flags.String("ip-masq-agent-config-path", c.Path, "Configuration file of the ip-masq-agent; the agent applies its changes")
}

func (c Config) check() error {
	if c.Enabled && !filepath.IsAbs(c.Path) {
		return fmt.Errorf("--ip-masq-agent-config-path=%q: want an absolute path", c.Path)
	}
	return nil
}

// initializer marks the table as complete.
type initializer func(statedb.WriteTxn)

func newInitializer(db *statedb.DB, table statedb.RWTable[masquerade.IPMasq]) initializer {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	return table.RegisterInitializer(txn, "ip-masq-agent")
}

type params struct {
	cell.In

	Config   Config
	DB       *statedb.DB
	Table    statedb.RWTable[masquerade.IPMasq]
	Complete initializer
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

func register(jobs job.Group, p params) error {
	if err := p.Config.check(); err != nil {
		return err
	}
	if !p.Config.Enabled {
		txn := p.DB.WriteTxn(p.Table)
		defer txn.Commit()
		p.Complete(txn)
		return nil
	}
	watchdog.AddRetried(jobs, "follow-file", (&follower{params: p, newWatcher: fsnotify.NewWatcher}).run, minRetry, maxRetry)
	return nil
}
