package servicemaps

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// writer writes to the maps. It records each write in the known contents, and the work that it could not complete in the backlog.
type writer struct {
	maps  servicemap.Maps
	known *inForce // nil until the maps have been read
	left  backlog
	alive func() // reports progress of a pass; called after each step of bounded size
}

// release frees everything whose quarantine has ended.
func (w *writer) release(now time.Time) {
	w.known.release(now, func(id uint32) { w.left.untidy[id] = nil })
}

// removeUnwanted marks everything that no row has wanted as to be removed.
func (w *writer) removeUnwanted() {
	for key, e := range w.known.entries {
		if !e.wanted {
			w.left.leaving[key] = nil
		}
	}
	for id, b := range w.known.backends {
		if !b.wanted {
			w.left.orphans[id] = nil
		}
	}
	for id, b := range w.known.holdings.of {
		if !b.wanted {
			w.left.untidy[id] = nil
		}
	}
}

// gone records that a row was deleted.
func (w *writer) gone(row *frontends.Frontend) {
	key := externalKey(row)
	w.left.again.forget(key)
	delete(w.known.later.since, key)
	w.disown(row.ID, key)
	p := plan{key: key}
	for _, scope := range []uint8{bpf.ScopeExternal, bpf.ScopeInternal} {
		if e := w.known.entries[p.keyOf(scope)]; e != nil {
			e.wanted = false
			w.left.leaving[p.keyOf(scope)] = nil
			w.disown(e.value.Id, key)
		}
	}
}

// disown records that the entry no longer uses the members and ranges of an id.
func (w *writer) disown(id uint32, key bpf.ServiceKey) {
	if w.known.holdings.disown(id, key) {
		w.left.untidy[id] = nil
	}
}

// writeFrontends brings rows into force.
func (w *writer) writeFrontends(plans []*plan, now time.Time) {
	var b batches
	w.known.planned = 0
	for _, p := range plans { // all before a new one counts, because after a restart no entry counts for its namespace yet
		p.owner = w.known.claim(p.row)
	}
	for _, p := range plans {
		w.known.plan(p, w.left.againBackends.rows, &b)
		w.alive() // a Maglev table may have been computed
	}
	w.writeParts(&b)
	for _, p := range plans {
		w.known.withoutTable(p)
		switch {
		case p.fatal != nil:
			w.known.undo(p)
		case p.close:
			w.known.closeOutside(p)
		}
	}
	for _, scope := range []uint8{bpf.ScopeInternal, bpf.ScopeExternal} { // the external entry refers to the internal one
		w.writeEntries(plans, scope, now)
		w.alive()
	}
	for _, p := range plans {
		w.settle(p)
	}
}

// writeParts writes everything that entries name.
func (w *writer) writeParts(b *batches) {
	b.members.put(w.maps.Members, func(p *plan, m bpf.AffinityMember, scopes uint32, err error) {
		if w.known.holdings.recordScopes(m, scopes, err); err != nil {
			p.recordMissing(w.known.fullIs(bpf.MapAffinityMembers, err, "--bpf-lb-affinity-map-max"))
		}
	})
	w.alive()
	b.slots.put(w.maps.Slots, func(p *plan, _, _ uint32, err error) {
		if err != nil {
			p.slotsFailed = true
			p.fail(err)
		}
	})
	w.alive()
	b.maglev.put(w.maps.Maglev, func(t *table, _, _ uint32, err error) {
		if err != nil {
			t.err = err
		}
	})
	w.alive()
	b.ranges.put(w.maps.Ranges, func(p *plan, r bpf.SourceRangeKey, _ uint32, err error) {
		if err != nil {
			w.known.holdings.strikeRange(r)
			p.recordMissing(w.known.fullIs(bpf.MapSourceRanges, err, "--bpf-lb-map-max"))
			p.close = p.close || p.row.Deny // otherwise its clients would be allowed
		}
	})
	w.alive()
}

// writeEntries writes the entries of one scope.
func (w *writer) writeEntries(plans []*plan, scope uint8, now time.Time) {
	var entries writes[bpf.ServiceKey, bpf.Service, *plan]
	for _, p := range plans {
		if next := p.next[scope]; next != nil && p.fatal == nil {
			entries.add(p, p.keyOf(scope), next.value)
		}
	}
	entries.put(w.maps.Services, func(p *plan, key bpf.ServiceKey, _ bpf.Service, err error) {
		if err != nil {
			p.fail(w.known.fullIs(bpf.MapServices, err, "--bpf-lb-map-max"))
			w.known.undo(p)
			return
		}
		delete(w.left.leaving, key)
		w.known.replace(key, p.next[scope], now)
		p.next[scope] = nil
	})
}

// settle records the wanted entries after a row has come into force or failed.
func (w *writer) settle(p *plan) {
	if err := p.err(); err != nil {
		w.left.attempts++
		w.left.again.add(p.key, failure{err: fmt.Errorf("apply %s of service %s: %w", p.row.Address, p.row.Service, err), namespace: p.owner.name, waits: p.waits, quota: p.quota,
			transient: p.transient, exists: w.known.entries[p.key] != nil || w.known.entries[p.keyOf(bpf.ScopeInternal)] != nil, attempt: w.left.attempts})
	}
	for scope, kept := range p.kept {
		key := p.keyOf(uint8(scope))
		have := w.known.entries[key]
		if kept && have != nil {
			have.wanted = true
			delete(w.left.leaving, key)
		}
		if _, leaves := w.left.leaving[key]; p.fatal != nil && have != nil && !leaves && have.value.Id == p.row.ID {
			have.wanted = true // the previous entry stays in force
		}
	}
	if p.fatal != nil {
		return
	}
	if !p.fewer {
		delete(w.known.later.since, p.key)
	}
	if internal := p.keyOf(bpf.ScopeInternal); !p.row.TwoScopes && w.known.entries[internal] != nil {
		w.known.entries[internal].wanted = false
		w.left.leaving[internal] = nil
	}
	if b := w.known.holdings.of[p.row.ID]; b != nil {
		b.unsettled = false
		w.left.untidy[p.row.ID] = nil
	}
	if p.before != 0 && p.before != p.row.ID {
		w.disown(p.before, p.key)
	}
}
