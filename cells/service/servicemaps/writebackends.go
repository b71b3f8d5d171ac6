package servicemaps

import (
	"fmt"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// orphanBackend marks a backend without a row as not wanted.
func (w *writer) orphanBackend(id uint32) {
	w.left.againBackends.forget(id)
	if b := w.known.backends[id]; b != nil {
		b.wanted = false
		w.left.orphans[id] = nil
	}
}

// writeBackends writes backends to their map, and returns the rows of those that were added.
func (w *writer) writeBackends(rows []*backends.Backend) (added []*backends.Backend) {
	planned := map[*share]uint32{}
	var batch writes[uint32, bpf.Backend, *backends.Backend]
	for _, row := range rows {
		value := bpf.NewBackend(row.Address, only(row.Local, bpf.BackendLocal))
		have, owner := w.known.backends[row.ID], w.known.shares.ofBackend(row)
		if have != nil {
			have.claimBackend(owner)
		}
		switch {
		case have == nil || have.changed:
		case have.value == value:
			have.wanted = true
			delete(w.left.orphans, row.ID)
			continue
		case bpf.AddressOfBackend(have.value) != row.Address && w.known.slots.refs[row.ID] > 0:
			w.notWritten(row, fmt.Errorf("id %d still belongs to %s", row.ID, bpf.AddressOfBackend(have.value)))
			continue
		}
		if have == nil {
			if planned[owner] >= w.known.quotaLeft(owner, bpf.MapBackends) {
				w.notWritten(row, w.known.overQuota(owner, bpf.MapBackends, 1, 1))
				continue
			}
			planned[owner]++
		}
		batch.add(row, row.ID, value)
	}
	batch.put(w.maps.Backends, func(row *backends.Backend, id uint32, value bpf.Backend, err error) {
		if err != nil {
			w.notWritten(row, w.known.fullIs(bpf.MapBackends, err, "--bpf-lb-map-max"))
			return
		}
		have := w.known.backends[id]
		if have == nil {
			added = append(added, row)
			have = &backend{}
			have.claimBackend(w.known.shares.ofBackend(row))
			w.known.backends[id] = have
		}
		have.value, have.wanted, have.changed = value, true, false
		delete(w.left.orphans, id)
	})
	return added
}

func (w *writer) notWritten(row *backends.Backend, err error) {
	w.left.againBackends.add(row.ID, w.known.shares.ofBackend(row), fmt.Errorf("write backend %d, %s: %w", row.ID, row.Address, err))
}

// removeBackends removes backends that have no row and that no slot names.
func (w *writer) removeBackends() {
	var ids []uint32
	for id := range w.left.orphans {
		switch b := w.known.backends[id]; {
		case b == nil || b.wanted:
			delete(w.left.orphans, id)
		case w.known.slots.refs[id] == 0:
			ids = append(ids, id)
		}
	}
	remove(w.maps.Backends, ids, func(id uint32, err error) {
		if err != nil {
			w.left.orphans[id] = fmt.Errorf("remove backend %d: %w", id, err)
			return
		}
		w.known.backends[id].claimBackend(nil)
		delete(w.known.backends, id)
		delete(w.left.orphans, id)
	})
}
