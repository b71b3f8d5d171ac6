// Package configreport shows the effective options of the agent with their sources, and the options of Cilium that the agent ignores.
//
// Tables in: none. Table out: configs, which the start hook writes once from [config.Effective]. The cell owns nothing in the kernel. After a restart the table
// is written again. In a hive without main, as in tests of other cells, the table stays empty.
package configreport

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/tables/configs"
)

// Cell fills the table configs.
var Cell = cell.Module("configs", "Options and where their values came from",
	cell.ProvidePrivate(configs.NewTable), // only this cell writes it
	cell.Provide(statedb.RWTable[configs.Config].ToTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	DB        *statedb.DB
	Table     statedb.RWTable[configs.Config]
	Config    config.Effective `optional:"true"`
}

func register(p params) {
	p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		txn := p.DB.WriteTxn(p.Table)
		defer txn.Abort()
		for _, o := range p.Config.Options {
			row := configs.Config{Key: o.Key, Value: o.Value, Default: o.Default, Source: o.Source.String(), Origin: o.Origin}
			if _, _, err := p.Table.Insert(txn, row); err != nil {
				return fmt.Errorf("insert option %s: %w", o.Key, err)
			}
		}
		for _, o := range p.Config.Ignored {
			row := configs.Config{Key: o.Key, Source: o.Source.String(), Origin: o.Origin, Ignored: true, Unprotected: o.Unprotected}
			if _, _, err := p.Table.Insert(txn, row); err != nil {
				return fmt.Errorf("insert ignored option %s: %w", o.Key, err)
			}
		}
		txn.Commit()
		return nil
	}})
}
