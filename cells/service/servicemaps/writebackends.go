package servicemaps

import (
	"fmt"
	"slices"

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

// writeBackends writes backends to their map.
func (w *writer) writeBackends(rows []*backends.Backend) {
	for _, row := range rows { // all before a new one counts, because after a restart no backend counts for its namespace yet
		w.known.claimBackend(row)
	}
	owners := map[uint32]*namespace{} // of new backends
	var batch writes[uint32, bpf.Backend, *backends.Backend]
	for _, row := range rows {
		value := bpf.NewBackend(row.Address, only(row.Local, bpf.BackendLocal))
		have := w.known.backends[row.ID]
		switch {
		case have == nil && owners[row.ID] == nil:
			owner := w.known.namespaces.ofBackend(row, nil)
			if w.known.quotaLeft(owner, bpf.MapBackends) == 0 {
				w.notWritten(row, owner, w.known.overQuota(owner, bpf.MapBackends))
				continue
			}
			owner.backends++
			owners[row.ID] = owner
		case have == nil || have.changed:
		case have.value == value:
			have.wanted = true
			delete(w.left.orphans, row.ID)
			continue
		case bpf.AddressOfBackend(have.value) != row.Address && w.known.slots.refs[row.ID] > 0:
			w.notWritten(row, have.owner, &noCapacity{of: capacityOf(bpf.MapServiceSlots), error: fmt.Errorf("id %d still belongs to %s", row.ID, bpf.AddressOfBackend(have.value))})
			continue
		}
		batch.add(row, row.ID, value)
	}
	batch.put(w.maps.Backends, func(row *backends.Backend, id uint32, value bpf.Backend, err error) {
		have := w.known.backends[id]
		switch {
		case err != nil && have != nil:
			w.notWritten(row, have.owner, w.known.fullIs(bpf.MapBackends, err, "--bpf-lb-map-max"))
			return
		case err != nil:
			owners[id].backends--
			w.notWritten(row, owners[id], w.known.fullIs(bpf.MapBackends, err, "--bpf-lb-map-max"))
			return
		case have == nil:
			have = &backend{owner: owners[id]}
			w.known.backends[id] = have
			w.known.freed |= aBackend
		}
		have.value, have.wanted, have.changed = value, true, false
		delete(w.left.orphans, id)
	})
}

// notWritten records a backend that counts for a namespace if it is written.
func (w *writer) notWritten(row *backends.Backend, owner *namespace, err error) {
	w.left.attempts++
	waits, quota := waitsFor(err), quotaFor(err)
	if slices.ContainsFunc(row.Services, func(service string) bool { return w.known.namespaces.of(service) != owner }) {
		quota = 0 // it may fit into that of another namespace
	}
	w.left.againBackends.add(row.ID, failure{err: fmt.Errorf("write backend %d, %s: %w", row.ID, row.Address, err), namespace: owner.name, waits: waits, quota: quota,
		transient: waits == 0, attempt: w.left.attempts})
}

// written reports whether one of the backends was written.
func (w *writer) written(ids []uint32) bool {
	return slices.ContainsFunc(ids, func(id uint32) bool { return w.left.againBackends.rows[id].err == nil })
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
		w.known.backends[id].owner.backends--
		w.known.freed |= capacityOf(bpf.MapBackends)
		delete(w.known.backends, id)
		delete(w.left.orphans, id)
	})
}
