package sysctl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// writer implements [sysctls.Writer].
type writer struct {
	db    *statedb.DB
	table statedb.RWTable[*sysctls.Setting]
}

func newWriter(db *statedb.DB, table statedb.RWTable[*sysctls.Setting]) sysctls.Writer {
	return &writer{db: db, table: table}
}

// Replace implements [sysctls.Writer]. Owners call it in each of their rounds, so it opens no write transaction for unchanged settings.
func (w *writer) Replace(owner string, settings []sysctls.Setting) error {
	wanted := make(map[string]sysctls.Setting, len(settings))
	for _, s := range settings {
		s.Owner = owner
		wanted[s.Name] = s
	}
	if w.has(owner, wanted) {
		return nil
	}
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	err := w.put(txn, owner, settings)
	for old := range w.table.List(txn, sysctls.ByOwner(owner)) {
		if _, ok := wanted[old.Name]; ok {
			continue
		}
		if _, _, failed := w.table.Delete(txn, old); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	txn.Commit()
	return err
}

// has reports whether the rows of an owner are exactly these settings by name, whatever their status.
func (w *writer) has(owner string, wanted map[string]sysctls.Setting) bool {
	left := len(wanted)
	for old := range w.table.List(w.db.ReadTxn(), sysctls.ByOwner(owner)) {
		s, found := wanted[old.Name]
		if !found || !old.Equal(&s) {
			return false
		}
		left--
	}
	return left == 0
}

// Update implements [sysctls.Writer].
func (w *writer) Update(owner string, put []sysctls.Setting, remove []string) error {
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	var errs []error
	for _, name := range remove {
		if slices.ContainsFunc(put, func(s sysctls.Setting) bool { return s.Name == name }) {
			continue
		}
		if old, _, found := w.table.Get(txn, sysctls.ByName(name)); found && old.Owner == owner {
			_, _, err := w.table.Delete(txn, old)
			errs = append(errs, err)
		}
	}
	errs = append(errs, w.put(txn, owner, put))
	txn.Commit()
	return errors.Join(errs...)
}

// put inserts settings that differ from their rows. A setting of another owner is a conflict and an error.
func (w *writer) put(txn statedb.WriteTxn, owner string, settings []sysctls.Setting) error {
	var errs []error
	for _, s := range settings {
		s.Owner = owner
		if err := validName(s.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		old, _, found := w.table.Get(txn, sysctls.ByName(s.Name))
		switch {
		case found && old.Owner != owner:
			errs = append(errs, fmt.Errorf("request sysctl %s = %s: %s requests %s", s.Name, s.Value, old.Owner, old.Value))
			continue
		case found && old.Equal(&s):
			continue
		}
		if _, _, err := w.table.Insert(txn, s.WithStatus(reconciler.StatusPending())); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
