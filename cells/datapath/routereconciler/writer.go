package routereconciler

import (
	"errors"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

// writer implements [desiredroutes.Writer]. The write transaction of the table also guards expected.
type writer struct {
	db       *statedb.DB
	table    statedb.RWTable[*desiredroutes.Route]
	expected map[string]func(statedb.WriteTxn)
}

func newWriter(db *statedb.DB, table statedb.RWTable[*desiredroutes.Route]) desiredroutes.Writer {
	return &writer{db: db, table: table, expected: make(map[string]func(statedb.WriteTxn))}
}

// Expect implements [desiredroutes.Writer].
func (w *writer) Expect(owner string) {
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	if _, ok := w.expected[owner]; !ok {
		w.expected[owner] = w.table.RegisterInitializer(txn, owner)
	}
	txn.Commit()
}

// Update implements [desiredroutes.Writer].
func (w *writer) Update(owner string, put, remove []desiredroutes.Route) error {
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	_, err := w.insert(txn, owner, put)
	errs := []error{err}
	for _, r := range remove {
		if old, _, found := w.table.Get(txn, desiredroutes.ByKey(r.Key())); found && old.Owner == owner {
			_, _, err := w.table.Delete(txn, old)
			errs = append(errs, err)
		}
	}
	txn.Commit()
	return errors.Join(errs...)
}

// Replace implements [desiredroutes.Writer].
func (w *writer) Replace(owner string, routes []desiredroutes.Route) error {
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	wanted, err := w.insert(txn, owner, routes)
	errs := []error{err}
	for old := range w.table.List(txn, desiredroutes.ByOwner(owner)) {
		if _, ok := wanted[old.Key()]; ok {
			continue
		}
		if _, _, err := w.table.Delete(txn, old); err != nil {
			errs = append(errs, err)
		}
	}
	if done, ok := w.expected[owner]; ok {
		done(txn)
	}
	txn.Commit()
	return errors.Join(errs...)
}

// insert writes the routes that differ, and returns the keys of all.
func (w *writer) insert(txn statedb.WriteTxn, owner string, routes []desiredroutes.Route) (wanted map[string]struct{}, err error) {
	wanted = make(map[string]struct{}, len(routes))
	var errs []error
	for _, r := range routes {
		r.Owner, r.Dst = owner, r.Dst.Masked()
		wanted[r.Key()] = struct{}{}
		old, _, found := w.table.Get(txn, desiredroutes.ByKey(r.Key()))
		switch {
		case found && old.Owner != owner:
			errs = append(errs, fmt.Errorf("want route %s in table %d: %s owns it", r.Dst, r.Table, old.Owner))
			continue
		case found && old.Equal(&r):
			continue
		}
		if _, _, err := w.table.Insert(txn, r.WithStatus(reconciler.StatusPending())); err != nil {
			errs = append(errs, err)
		}
	}
	return wanted, errors.Join(errs...)
}
