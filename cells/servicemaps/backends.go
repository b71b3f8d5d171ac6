package servicemaps

import (
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// changedBackends lists the rows that may have to be written, and marks backends without a row as not wanted. A row that is both due and changed is listed
// twice, which is harmless.
func (c *controller) changedBackends(txn statedb.ReadTxn, changed *statedb.WatchSet, due bool) (rows []*backends.Backend) {
	if due {
		for id := range c.againBackends {
			if row, _, found := c.Backends.Get(txn, backends.ByID(id)); found {
				rows = append(rows, row)
			} else {
				delete(c.againBackends, id)
			}
		}
	}
	for _, change := range c.backendChanges.UpTo(txn, changed) {
		row := change.Object
		if !change.Deleted {
			rows = append(rows, row)
		} else if _, _, there := c.Backends.Get(txn, backends.ByID(row.ID)); !there {
			c.orphanBackend(row.ID)
		}
	}
	return rows
}

func (c *controller) orphanBackend(id uint32) {
	delete(c.againBackends, id)
	if b := c.backends[id]; b != nil {
		b.wanted = false
		c.orphans[id] = nil
	}
}

// writeBackends writes backends to their map, and reports whether a backend was added.
func (c *controller) writeBackends(rows []*backends.Backend) (added bool) {
	var w writes[uint32, bpf.Backend, *backends.Backend]
	for _, row := range rows {
		delete(c.againBackends, row.ID)
		value := bpf.NewBackend(row.Address, only(row.Local, bpf.BackendLocal))
		have := c.backends[row.ID]
		switch {
		case have == nil || have.changed:
		case have.value == value:
			have.wanted = true
			delete(c.orphans, row.ID)
			continue
		case bpf.AddressOfBackend(have.value) != row.Address && c.refs[row.ID] > 0:
			c.notWritten(row, fmt.Errorf("id %d still belongs to %s", row.ID, bpf.AddressOfBackend(have.value)))
			continue
		}
		w.add(row, row.ID, value)
	}
	w.put(c.maps.Backends, func(row *backends.Backend, id uint32, value bpf.Backend, err error) {
		if err != nil {
			c.notWritten(row, c.fullIs(c.maps.Backends.Name(), err, "--bpf-lb-map-max"))
			return
		}
		added = added || c.backends[id] == nil
		c.backends[id] = &backend{value: value, wanted: true}
		delete(c.orphans, id)
	})
	return added
}

func (c *controller) notWritten(row *backends.Backend, err error) {
	c.againBackends[row.ID] = fmt.Errorf("write backend %d, %s: %w", row.ID, row.Address, err)
}

// removeBackends removes backends that have no row and that no slot names.
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
