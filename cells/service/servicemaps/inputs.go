package servicemaps

import (
	"errors"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// inputs follows the tables of frontends and backends. It lists the rows that a pass has to handle.
type inputs struct {
	frontends       statedb.Table[*frontends.Frontend]
	backends        statedb.Table[*backends.Backend]
	frontendChanges *changefeed.Feed[*frontends.Frontend]
	backendChanges  *changefeed.Feed[*backends.Backend]
	complete        bool // both tables are complete, so entries without a row are removed
}

// follow subscribes to the tables.
func follow(db *statedb.DB, fronts statedb.Table[*frontends.Frontend], backs statedb.Table[*backends.Backend]) (*inputs, error) {
	in := &inputs{frontends: fronts, backends: backs}
	txn := db.WriteTxn(fronts, backs)
	defer txn.Commit()
	var err1, err2 error
	in.frontendChanges, err1 = changefeed.Follow(txn, fronts)
	in.backendChanges, err2 = changefeed.Follow(txn, backs)
	return in, errors.Join(err1, err2)
}

func (in *inputs) close() {
	in.frontendChanges.Close()
	in.backendChanges.Close()
}

// changedBackends lists the changed rows, and the ids of backends that have lost their row. It removes both from the backlog.
func (in *inputs) changedBackends(txn statedb.ReadTxn, changed *statedb.WatchSet, left *backlog) (rows []*backends.Backend, gone []uint32) {
	for _, change := range in.backendChanges.UpTo(txn, changed) {
		row := change.Object
		if !change.Deleted {
			left.againBackends.forget(row.ID)
			rows = append(rows, row)
		} else if !in.hasBackend(txn, row.ID) {
			gone = append(gone, row.ID)
		}
	}
	return rows, gone
}

// backendsOf returns the rows with the given ids, and removes the ids from the backlog.
func (in *inputs) backendsOf(txn statedb.ReadTxn, ids []uint32, left *backlog) (rows []*backends.Backend) {
	for _, id := range ids {
		if row, _, found := in.backends.Get(txn, backends.ByID(id)); found {
			rows = append(rows, row)
		}
		left.againBackends.forget(id)
	}
	return rows
}

// hasBackend reports whether a row has this id.
func (in *inputs) hasBackend(txn statedb.ReadTxn, id uint32) bool {
	_, _, found := in.backends.Get(txn, backends.ByID(id))
	return found
}

// changedFrontends lists the changed rows that have to be brought into force, and the deleted rows. It removes the changed ones from the backlog.
func (in *inputs) changedFrontends(txn statedb.ReadTxn, changed *statedb.WatchSet, left *backlog) (plans []*plan, gone []*frontends.Frontend) {
	for _, change := range in.frontendChanges.UpTo(txn, changed) { // at most one change for each row
		row := change.Object
		key := externalKey(row)
		switch {
		case change.Deleted:
			gone = append(gone, row)
		case row.Status.Kind == reconciler.StatusKindPending:
			left.again.forget(key)
			plans = append(plans, &plan{row: row, revision: change.Revision, key: key})
		}
	}
	return plans, gone
}

// frontendsOf returns plans for the rows with the given keys, and removes the keys from the backlog.
func (in *inputs) frontendsOf(txn statedb.ReadTxn, keys []bpf.ServiceKey, left *backlog) (plans []*plan) {
	for _, key := range keys {
		if row, revision, found := in.frontends.Get(txn, frontends.ByAddress(bpf.AddressOfService(key))); found {
			plans = append(plans, &plan{row: row, revision: revision, key: key})
		}
		left.again.forget(key)
	}
	return plans
}

// externalKey returns the key of the external entry of a row.
func externalKey(row *frontends.Frontend) bpf.ServiceKey {
	return bpf.NewServiceKey(row.Address, bpf.ScopeExternal)
}

// completed reports whether this call finds both tables complete for the first time.
func (in *inputs) completed(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	if in.complete {
		return false
	}
	known, initialized := in.frontends.Initialized(txn)
	if !known {
		changed.Add(initialized)
		return false
	}
	if known, initialized = in.backends.Initialized(txn); !known {
		changed.Add(initialized)
		return false
	}
	in.complete = true
	return true
}
