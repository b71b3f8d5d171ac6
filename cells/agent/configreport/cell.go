// Package configreport shows the effective options of the agent with their sources, the options of Cilium that the agent ignores, and the options whose value
// in --config-dir has changed since the start.
//
// Tables in: none. Table out: configs, which the start hook fills from [config.Effective]; later only the changes of --config-dir are written. The cell owns
// nothing in the kernel. After a restart the table is written again. In a hive without main, as in tests of other cells, the table stays empty.
package configreport

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell fills the table configs.
var Cell = cell.Module("configs", "Options and where their values came from",
	cell.ProvidePrivate(configs.NewTable), // only this cell writes it
	cell.Provide(statedb.RWTable[configs.Config].ToTable),
	cell.Invoke(register), // start hook that writes the rows, and a job that reads --config-dir
)

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	DB        *statedb.DB
	Table     statedb.RWTable[configs.Config]
	Config    config.Effective `optional:"true"`
}

func register(p params) {
	p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		if err := p.insert(rowsOf(p.Config)); err != nil {
			return err
		}
		if p.Config.Reader != nil { // after the rows exist
			watchdog.AddRetried(p.Jobs, "compare-config-dir", (&comparer{p}).run, time.Second, time.Minute)
		}
		return nil
	}})
}

// rowsOf returns the rows of all options.
func rowsOf(effective config.Effective) (rows []configs.Config) {
	for _, o := range effective.Options {
		rows = append(rows, configs.Config{Key: o.Key, Value: o.Value, Default: o.Default, Source: o.Source.String(), Origin: o.Origin})
	}
	for _, o := range effective.Ignored {
		rows = append(rows, configs.Config{Key: o.Key, Source: o.Source.String(), Origin: o.Origin, Ignored: true, Unprotected: o.Unprotected})
	}
	return rows
}

func (p params) insert(rows []configs.Config) error {
	if len(rows) == 0 {
		return nil
	}
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Abort()
	for _, row := range rows {
		if _, _, err := p.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert option %s: %w", row.Key, err)
		}
	}
	txn.Commit()
	return nil
}
