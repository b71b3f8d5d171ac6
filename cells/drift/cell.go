package drift

import (
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/drift"
	tables "github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// Cell is the module.
var Cell = cell.Module("drift", "Account of repairs",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(tables.NewTable), // written through the ledger only
	cell.Provide(
		statedb.RWTable[tables.Repair].ToTable, // anyone may read
		newWatch,                               // how cells record, and how often they look
	),
	cell.Invoke(registerFights),
)

// Config is what was typed.
type Config struct {
	VerifyInterval time.Duration `mapstructure:"verify-interval"`
}

// DefaultConfig keeps the promise of the documentation: what the kernel does not announce is found within 30 s.
var DefaultConfig = Config{VerifyInterval: 25 * time.Second}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("verify-interval", c.VerifyInterval,
		"How often maps, programs, sysctls and rules are read back; the kernel announces most other changes at once")
}

func newWatch(c Config, db *statedb.DB, table statedb.RWTable[tables.Repair]) (drift.Watch, error) {
	if c.VerifyInterval < time.Second {
		return drift.Watch{}, fmt.Errorf("--verify-interval=%s: want at least 1s", c.VerifyInterval)
	}
	return drift.Watch{DB: db, Repairs: &ledger{db: db, table: table, now: time.Now}, Interval: c.VerifyInterval}, nil
}
