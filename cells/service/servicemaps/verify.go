package servicemaps

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// few is the maximum number of entries and backends for which one run verifies all maps. With more, each run verifies one map.
const few = 5000

// verify compares the maps with the written entries. Rows whose entries differ are written again in the next pass; unknown entries are removed at once.
func (c *controller) verify(txn statedb.ReadTxn) {
	if !c.in.complete {
		return // there may be entries of the previous run
	}
	w := &c.writer
	checks := []func(finder) error{w.verifyServices, w.verifyBackends, w.verifySlots, w.verifyTables, w.verifyMembers, w.verifyRanges}
	if len(w.known.entries)+len(w.known.backends) > few {
		checks = checks[c.verified%len(checks):][:1]
	}
	c.verified++
	var errs []error
	for _, look := range checks {
		errs = append(errs, look(c.found))
	}
	c.unread = errors.Join(errs...)
	w.known.namespaces.prune()
	w.forgotten(func(id uint32) bool { return c.in.hasBackend(txn, id) })
}

// finder records a finding.
type finder func(in, what string)

// found records a finding and makes the retry due at once. Removed entries of another writer may have freed capacity.
func (c *controller) found(in, what string) {
	c.retry.transient.at, c.writer.known.freed = time.Time{}, anything
	c.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: in, Found: what})
}

// forgotten finds backends whose row has another id, for which the table reports no change.
func (w *writer) forgotten(hasRow func(id uint32) bool) {
	for id, b := range w.known.backends {
		if !hasRow(id) && b.wanted {
			w.orphanBackend(id)
		}
	}
	for id := range w.left.againBackends.rows {
		if !hasRow(id) {
			w.left.againBackends.forget(id)
		}
	}
}

// differs records that an entry or a part of it differs from the written one. It counts at most one finding for a row, and none for a row that is to be retried
// anyway.
func (w *writer) differs(record finder, key bpf.ServiceKey, in, what string) {
	key.Scope = bpf.ScopeExternal
	if w.left.again.repair(key) {
		record(in, fmt.Sprintf("%s %s", bpf.AddressOfService(key), what))
	}
}

// compare reads a map. It removes entries that were not written by this cell.
func compare[K comparable, V comparable](record finder, table servicemap.Table[K, V], wanted func(K) bool, name func(K) string) (map[K]V, error) {
	keys, values, err := table.Dump()
	if err != nil {
		return nil, err
	}
	have := make(map[K]V, len(keys))
	var unowned []K
	for i, key := range keys {
		have[key] = values[i]
		if !wanted(key) {
			unowned = append(unowned, key)
			record(table.Name(), name(key)+" has no owner")
		}
	}
	return have, table.Delete(unowned).Error()
}

// wrong returns how an entry differs, "" if it does not.
func wrong[K, V comparable](have map[K]V, key K, want V) string {
	switch value, found := have[key]; {
	case !found:
		return "is missing"
	case value != want:
		return "has another value"
	}
	return ""
}

func (w *writer) verifyServices(record finder) error {
	have, err := compare(record, w.maps.Services, func(k bpf.ServiceKey) bool { return w.known.entries[k] != nil },
		func(k bpf.ServiceKey) string { return bpf.AddressOfService(k).String() })
	if have == nil {
		return err
	}
	for key, e := range w.known.entries {
		if what := wrong(have, key, e.value); what != "" {
			e.changed = true
			w.differs(record, key, w.maps.Services.Name(), what)
		}
	}
	return err
}

func (w *writer) verifyBackends(record finder) error {
	have, err := compare(record, w.maps.Backends, func(id uint32) bool { return w.known.backends[id] != nil },
		func(id uint32) string { return fmt.Sprint("backend ", id) })
	if have == nil {
		return err
	}
	for id, b := range w.known.backends {
		if what := wrong(have, id, b.value); what != "" {
			b.changed = true
			if w.left.againBackends.repair(id) {
				record(w.maps.Backends.Name(), fmt.Sprintf("backend %d %s", id, what))
			}
		}
	}
	return err
}

// verifySlots reads the slots up to the last used one, because the map has about a hundred thousand elements.
func (w *writer) verifySlots(record finder) error {
	end := 0
	for _, e := range w.known.entries {
		if n := len(w.known.slots.list(e)); n > 0 {
			end = max(end, int(e.value.First)+n)
		}
	}
	_, have, err := w.maps.Slots.Head(end)
	if err != nil {
		return err
	}
	for key, e := range w.known.entries {
		for i, id := range w.known.slots.list(e) {
			if have[int(e.value.First)+i] != id {
				e.damaged = true
				w.differs(record, key, w.maps.Slots.Name(), "has other backends in its slots")
				break
			}
		}
	}
	return nil
}

func (w *writer) verifyTables(record finder) error {
	var have []uint32
	for key, e := range w.known.entries {
		if e.table == nil {
			continue
		}
		if have == nil {
			var err error
			if _, have, err = w.maps.Maglev.Dump(); err != nil {
				return err
			}
		}
		if w.known.tables.sum(servicemap.Slice(have, e.table.at, e.table.size)) != e.table.sum {
			e.damaged = true
			w.known.tables.forget(e.table)
			w.differs(record, key, w.maps.Maglev.Name(), "has other backends in its table")
		}
	}
	return nil
}

func (w *writer) verifyMembers(record finder) error {
	have, err := compare(record, w.maps.Members, func(m bpf.AffinityMember) bool {
		b := w.known.holdings.of[m.Service]
		if b == nil {
			return false
		}
		_, found := b.members[m.Backend]
		return found
	}, func(m bpf.AffinityMember) string {
		return fmt.Sprintf("backend %d of frontend %d", m.Backend, m.Service)
	})
	if have == nil {
		return err
	}
	for id, b := range w.known.holdings.of {
		for backend, m := range b.members {
			scopes, found := have[bpf.AffinityMember{Service: id, Backend: backend}]
			if scopes == m.has {
				continue
			}
			what := fmt.Sprintf("has backend %d in other scopes", backend)
			if m.has = scopes; found {
				b.members[backend] = m
			} else {
				strike(b.members, backend, &w.known.holdings.members)
				what = fmt.Sprintf("has lost backend %d", backend)
			}
			w.differs(record, b.of, w.maps.Members.Name(), what)
		}
	}
	return err
}

func (w *writer) verifyRanges(record finder) error {
	have, err := compare(record, w.maps.Ranges, func(r bpf.SourceRangeKey) bool {
		b, p := w.known.holdings.of[r.Service], bpf.SourceRangeOf(r)
		if b == nil || !p.IsValid() || bpf.NewSourceRangeKey(r.Service, p) != r {
			return false
		}
		_, found := b.ranges[p]
		return found
	}, func(r bpf.SourceRangeKey) string {
		return fmt.Sprintf("%s of frontend %d", bpf.SourceRangeOf(r), r.Service)
	})
	if have == nil {
		return err
	}
	for id, b := range w.known.holdings.of {
		for r := range b.ranges {
			if _, found := have[bpf.NewSourceRangeKey(id, r)]; !found {
				strike(b.ranges, r, &w.known.holdings.ranges)
				w.differs(record, b.of, w.maps.Ranges.Name(), fmt.Sprintf("has lost %s", r))
			}
		}
	}
	return err
}
