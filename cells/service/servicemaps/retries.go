package servicemaps

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// retriedBackends returns the backends that failed and are to be retried: with due those whose failure may end at any time, and those that fit into the map after
// the changed rows.
func (w *writer) retriedBackends(changed []*backends.Backend, due bool) (ids []uint32) {
	if due {
		for id := range w.left.againBackends.soon {
			ids = append(ids, id)
		}
		slices.Sort(ids)
	}
	fit, _ := w.left.againBackends.waits.take(bpf.MapBackends, func() room {
		free, others := w.known.room(bpf.MapBackends), uint32(len(ids))
		for _, row := range changed {
			others += only(w.known.backends[row.ID] == nil, uint32(1))
		}
		free.places -= min(free.places, others)
		return free
	})
	return append(ids, fit...)
}

// retriedSoon returns the frontends whose failure may end at any time, if that is due, and those that wait for quarantined slots, if some were released.
func (b *backlog) retriedSoon(due, released bool) (keys []bpf.ServiceKey) {
	if !due && !released {
		return nil
	}
	for key := range b.again.soon {
		if due || errors.Is(b.again.errs[key], errLater) {
			keys = append(keys, key)
		}
	}
	return keys
}

// sort sorts plans of rows that failed by the slots of their namespaces, those with the fewest first.
func (f *inForce) sort(plans []*plan) {
	slices.SortFunc(plans, func(a, b *plan) int {
		return cmp.Or(compareShares(f.shares.of(a.row.Service), f.shares.of(b.row.Service), bpf.MapServiceSlots), bytes.Compare(a.row.Address.Key(), b.row.Address.Key()))
	})
}

// lacking are the maps whose places a frontend may lack.
var lacking = [...]string{bpf.MapServices, bpf.MapServiceSlots, bpf.MapMaglev, bpf.MapAffinityMembers, bpf.MapSourceRanges}

// retriedFrontends returns the frontends that waited for backends of a namespace to which one was added, and those that fit into a map after the given plans. With
// due it also returns a few of the former, so that none depends on the services that rows of backends name.
func (w *writer) retriedFrontends(plans []*plan, added []*backends.Backend, due bool) (keys []bpf.ServiceKey) {
	waits := &w.left.again.waits
	if len(waits.rows) == 0 {
		return nil
	}
	for _, row := range added {
		for _, service := range row.Services {
			keys = append(keys, waits.wake(ofBackends, w.known.shares.of(service))...)
		}
	}
	if due {
		fit, _ := waits.take(ofBackends, func() room { return room{in: ofBackends, places: probe} })
		keys = append(keys, fit...)
	}
	for _, in := range lacking {
		fit, places := waits.take(in, func() room {
			free := w.known.room(in)
			if in == bpf.MapServices {
				for _, p := range plans {
					free.places -= min(free.places, w.known.newEntries(p))
				}
			}
			return free
		})
		keys = append(keys, fit...)
		if in == bpf.MapServiceSlots {
			w.known.freed -= places
		}
	}
	return keys
}

// newEntries returns how many entries of the map services a row needs in addition.
func (f *inForce) newEntries(p *plan) (n uint32) {
	for _, scope := range scopes(p.row) {
		n += only(f.entries[p.keyOf(scope)] == nil, uint32(1))
	}
	return n
}

// ready reports whether a row that failed fits into a map now.
func (w *writer) ready() bool {
	for _, in := range lacking {
		if w.left.again.waits.ready(in, func() room { return w.known.room(in) }) {
			return true
		}
	}
	return w.left.againBackends.waits.ready(bpf.MapBackends, func() room { return w.known.room(bpf.MapBackends) })
}
