package servicemaps

import (
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// backendRow is a row of backends that has to be written.
type backendRow struct {
	row      *backends.Backend
	revision statedb.Revision
	err      error
}

// changedBackends lists the rows that have to be written, and notes whom nobody wants any more.
func (c *controller) changedBackends(txn statedb.ReadTxn, changed *statedb.WatchSet, due bool) (rows []*backendRow) {
	all, more := c.backendChanges.Next(txn)
	changed.Add(more)
	at := map[uint32]int{}
	add := func(row *backends.Backend, revision statedb.Revision) {
		if i, seen := at[row.ID]; seen {
			rows[i] = &backendRow{row: row, revision: revision}
			return
		}
		at[row.ID] = len(rows)
		rows = append(rows, &backendRow{row: row, revision: revision})
	}
	for change := range all {
		row := change.Object
		_, _, there := c.Backends.Table.Get(txn, backends.ByID(row.ID))
		switch {
		case !there:
			c.goneBackend(row.ID)
		case !change.Deleted && row.Status.Kind == reconciler.StatusKindPending:
			add(row, change.Revision)
		}
	}
	if due {
		for id := range c.againBackends {
			if _, seen := at[id]; seen {
				continue
			}
			if row, revision, found := c.Backends.Table.Get(txn, backends.ByID(id)); found {
				add(row, revision)
			} else {
				delete(c.againBackends, id)
			}
		}
	}
	return rows
}

func (c *controller) goneBackend(id uint32) {
	delete(c.againBackends, id)
	if b := c.backends[id]; b != nil {
		b.wanted = false
		c.orphans[id] = nil
	}
}

// writeBackends puts backends into their map, and tells whether one is there that was not.
func (c *controller) writeBackends(rows []*backendRow) (added bool) {
	var w writes[uint32, bpf.Backend, *backendRow]
	for _, r := range rows {
		delete(c.againBackends, r.row.ID)
		value := bpf.NewBackend(r.row.Address, only(r.row.Local, bpf.BackendLocal))
		have := c.backends[r.row.ID]
		switch {
		case have == nil || have.changed:
		case have.value == value:
			have.wanted = true
			delete(c.orphans, r.row.ID)
			continue
		case bpf.AddressOfBackend(have.value) != r.row.Address && c.refs[r.row.ID] > 0:
			r.err = fmt.Errorf("id %d is still that of %s", r.row.ID, bpf.AddressOfBackend(have.value))
			continue
		}
		w.add(r, r.row.ID, value)
	}
	w.put(c.maps.Backends, func(r *backendRow, id uint32, value bpf.Backend, err error) {
		if err != nil {
			r.err = fullIs(err, "--bpf-lb-map-max")
			return
		}
		added = added || c.backends[id] == nil
		c.backends[id] = &backend{value: value, wanted: true}
		delete(c.orphans, id)
	})
	for _, r := range rows {
		if r.err != nil {
			r.err = fmt.Errorf("write backend %d, %s: %w", r.row.ID, r.row.Address, r.err)
			c.againBackends[r.row.ID] = r.err
		}
	}
	return added
}

// removeBackends removes those that nobody wants and that no slot names.
func (c *controller) removeBackends() {
	var ids []uint32
	for id := range c.orphans {
		switch b := c.backends[id]; {
		case b == nil || b.wanted:
			delete(c.orphans, id)
		case c.refs[id] == 0:
			ids = append(ids, id)
		}
	}
	remove(c.maps.Backends, ids, func(id uint32, err error) {
		if err != nil {
			c.orphans[id] = fmt.Errorf("remove backend %d: %w", id, err)
			return
		}
		delete(c.backends, id)
		delete(c.orphans, id)
		c.roomier = true
	})
}
