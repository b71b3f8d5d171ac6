package rows

import (
	"errors"
	"slices"

	"github.com/cilium/statedb"
)

// Owned writes a table in which several owners have rows of their own. The key of a row belongs to the first owner that inserts it, until this owner deletes the
// row. Each call is one commit, which has the valid changes also if the call returns an error. All methods may be called concurrently.
type Owned[R any] struct {
	DB       *statedb.DB
	Table    statedb.RWTable[R]
	Key      func(R) string
	ByKey    func(key string) statedb.Query[R]
	Owner    func(R) string
	ByOwner  func(owner string) statedb.Query[R]
	Same     func(old, want R) bool  // reports whether the old row may stay
	Conflict func(want, old R) error // returns the error for a row whose key belongs to the owner of old

	expected map[string]func(statedb.WriteTxn) // initializers by owner; the write transaction of the table guards it
}

// Expect registers an initializer: the table is not initialized before owner calls Replace. It must be called before the agent starts.
func (o *Owned[R]) Expect(owner string) {
	txn := o.DB.WriteTxn(o.Table)
	defer txn.Abort()
	if o.expected == nil {
		o.expected = make(map[string]func(statedb.WriteTxn))
	}
	if _, ok := o.expected[owner]; !ok {
		o.expected[owner] = o.Table.RegisterInitializer(txn, owner)
	}
	txn.Commit()
}

// Replace makes want the rows of owner and completes the owner's initializer. It inserts the rows that differ, in their order, then deletes the others. It omits
// the rows whose key belongs to another owner, and returns their conflicts. Owners call Replace in each of their rounds, so it opens no write transaction if
// nothing changes.
func (o *Owned[R]) Replace(owner string, want []R) error {
	wanted := o.byKey(want)
	if o.holds(owner, wanted) {
		return nil
	}
	txn := o.DB.WriteTxn(o.Table)
	defer txn.Abort()
	errs := []error{o.put(txn, owner, want)}
	for old := range o.Table.List(txn, o.ByOwner(owner)) {
		if _, ok := wanted[o.Key(old)]; !ok {
			_, _, err := o.Table.Delete(txn, old)
			errs = append(errs, err)
		}
	}
	if done, ok := o.expected[owner]; ok {
		done(txn)
	}
	txn.Commit()
	return errors.Join(errs...)
}

// Update inserts the rows of put that differ, in their order, then deletes the rows of owner with the keys in remove. A key in both lists stays. It omits the
// rows of put whose key belongs to another owner, and returns their conflicts. It completes no initializer.
func (o *Owned[R]) Update(owner string, put []R, remove []string) error {
	kept := o.byKey(put)
	txn := o.DB.WriteTxn(o.Table)
	defer txn.Abort()
	errs := []error{o.put(txn, owner, put)}
	for _, key := range remove {
		if _, ok := kept[key]; ok {
			continue
		}
		if old, _, found := o.Table.Get(txn, o.ByKey(key)); found && o.Owner(old) == owner {
			_, _, err := o.Table.Delete(txn, old)
			errs = append(errs, err)
		}
	}
	txn.Commit()
	return errors.Join(errs...)
}

// byKey returns rows by key. The last row with a key counts.
func (o *Owned[R]) byKey(list []R) map[string]R {
	rows := make(map[string]R, len(list))
	for _, row := range list {
		rows[o.Key(row)] = row
	}
	return rows
}

// holds reports whether the rows of an owner are the same as wanted and its initializer, if any, is complete.
func (o *Owned[R]) holds(owner string, wanted map[string]R) bool {
	txn := o.DB.ReadTxn()
	if slices.Contains(o.Table.PendingInitializers(txn), owner) {
		return false
	}
	left := len(wanted)
	for old := range o.Table.List(txn, o.ByOwner(owner)) {
		row, found := wanted[o.Key(old)]
		if !found || !o.Same(old, row) {
			return false
		}
		left--
	}
	return left == 0
}

// put inserts the rows that differ from the rows in the table, and returns the conflicts.
func (o *Owned[R]) put(txn statedb.WriteTxn, owner string, list []R) error {
	var errs []error
	for _, row := range list {
		old, _, found := o.Table.Get(txn, o.ByKey(o.Key(row)))
		switch {
		case found && o.Owner(old) != owner:
			errs = append(errs, o.Conflict(row, old))
			continue
		case found && o.Same(old, row):
			continue
		}
		if _, _, err := o.Table.Insert(txn, row); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
