package driftledger

import (
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// Cell records repairs of changed kernel objects.
var Cell = cell.Module("drift", "Repairs of kernel objects",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(driftrepairs.NewTable), // only the ledger writes
	cell.Provide(
		statedb.RWTable[driftrepairs.Repair].ToTable, // every cell may read
		newWatch, // the recorder and the verify interval of other cells
	),
	cell.Invoke(registerConflicts),
)

// Config configures the verify interval.
type Config struct {
	VerifyInterval time.Duration `mapstructure:"verify-interval"`
}

// DefaultConfig keeps the documented limit: changes that the kernel does not announce are found within 30 s.
var DefaultConfig = Config{VerifyInterval: 25 * time.Second}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("verify-interval", c.VerifyInterval,
		"Interval of the verification of maps, programs, sysctls and rules; the kernel announces most other changes immediately")
}

func newWatch(c Config, db *statedb.DB, table statedb.RWTable[driftrepairs.Repair]) (drift.Watch, error) {
	if c.VerifyInterval < time.Second {
		return drift.Watch{}, fmt.Errorf("--verify-interval=%s: want at least 1s", c.VerifyInterval)
	}
	return drift.Watch{DB: db, Repairs: &ledger{db: db, table: table, now: time.Now}, Interval: c.VerifyInterval}, nil
}
