package sysctl

import (
	"errors"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	tables "github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// writer implements [tables.Writer].
type writer struct {
	db    *statedb.DB
	table statedb.RWTable[*tables.Setting]
}

func newWriter(db *statedb.DB, table statedb.RWTable[*tables.Setting]) tables.Writer {
	return &writer{db: db, table: table}
}

// Replace implements [tables.Writer].
func (w *writer) Replace(owner string, settings []tables.Setting) error {
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	wanted := make(map[string]struct{}, len(settings))
	var errs []error
	for _, s := range settings {
		s.Owner = owner
		if err := validName(s.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		wanted[s.Name] = struct{}{}
		old, _, found := w.table.Get(txn, tables.ByName(s.Name))
		switch {
		case found && old.Owner != owner:
			errs = append(errs, fmt.Errorf("want sysctl %s = %s: %s wants %s", s.Name, s.Value, old.Owner, old.Value))
			continue
		case found && old.Equal(&s):
			continue
		}
		if _, _, err := w.table.Insert(txn, s.WithStatus(reconciler.StatusPending())); err != nil {
			errs = append(errs, err)
		}
	}
	for old := range w.table.List(txn, tables.ByOwner(owner)) {
		if _, ok := wanted[old.Name]; ok {
			continue
		}
		if _, _, err := w.table.Delete(txn, old); err != nil {
			errs = append(errs, err)
		}
	}
	txn.Commit()
	return errors.Join(errs...)
}
