package servicemaps

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// few is the maximum number of entries and backends for which one run verifies all maps. With more, each run verifies one map.
const few = 5000

// verify compares the maps with the written entries. Rows whose entries differ are written again in the next pass; unknown entries are removed at once.
func (c *controller) verify(txn statedb.ReadTxn) {
	if !c.complete {
		return // there may be entries of the previous run
	}
	checks := []func() error{c.verifyServices, c.verifyBackends, c.verifySlots, c.verifyTables, c.verifyMembers, c.verifyRanges}
	if len(c.entries)+len(c.backends) > few {
		checks = checks[c.verified%len(checks):][:1]
	}
	c.verified++
	var errs []error
	for _, look := range checks {
		errs = append(errs, look())
	}
	c.unread = errors.Join(errs...)
	c.forgotten(txn)
}

// forgotten finds backends whose row has another id, for which the table reports no change.
func (c *controller) forgotten(txn statedb.ReadTxn) {
	for id, b := range c.backends {
		if _, _, found := c.Backends.Get(txn, backends.ByID(id)); !found && b.wanted {
			c.orphanBackend(id)
		}
	}
}

// differs records that an entry or a part of it differs from the written one. It counts at most one finding for a row, and none for a row that is to be retried
// anyway.
func (c *controller) differs(key bpf.ServiceKey, in, what string) {
	key.Scope = bpf.ScopeExternal
	if _, known := c.again[key]; !known {
		c.again[key] = nil
		c.found(in, fmt.Sprintf("%s %s", bpf.AddressOfService(key), what))
	}
}

// found records a finding and makes the retry due at once.
func (c *controller) found(in, what string) {
	c.retryAt = time.Time{}
	c.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: in, Found: what})
}

// compare reads a map. It removes entries that were not written by this cell.
func compare[K comparable, V comparable](c *controller, table servicemaps.Table[K, V], wanted func(K) bool, name func(K) string) (map[K]V, error) {
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
			c.found(table.Name(), name(key)+" has no owner")
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

func (c *controller) verifyServices() error {
	have, err := compare(c, c.maps.Services, func(k bpf.ServiceKey) bool { return c.entries[k] != nil },
		func(k bpf.ServiceKey) string { return bpf.AddressOfService(k).String() })
	if have == nil {
		return err
	}
	for key, e := range c.entries {
		if what := wrong(have, key, e.value); what != "" {
			e.changed = true
			c.differs(key, c.maps.Services.Name(), what)
		}
	}
	return err
}

func (c *controller) verifyBackends() error {
	have, err := compare(c, c.maps.Backends, func(id uint32) bool { return c.backends[id] != nil },
		func(id uint32) string { return fmt.Sprint("backend ", id) })
	if have == nil {
		return err
	}
	for id, b := range c.backends {
		if what := wrong(have, id, b.value); what != "" {
			b.changed = true
			if _, known := c.againBackends[id]; !known {
				c.againBackends[id] = nil
				c.found(c.maps.Backends.Name(), fmt.Sprintf("backend %d %s", id, what))
			}
		}
	}
	return err
}

// verifySlots reads the slots up to the last used one, because the map has about a hundred thousand elements.
func (c *controller) verifySlots() error {
	end := 0
	for _, e := range c.entries {
		if n := len(c.list(e)); n > 0 {
			end = max(end, int(e.value.First)+n)
		}
	}
	_, have, err := c.maps.Slots.Head(end)
	if err != nil {
		return err
	}
	for key, e := range c.entries {
		for i, id := range c.list(e) {
			if have[int(e.value.First)+i] != id {
				e.damaged = true
				c.differs(key, c.maps.Slots.Name(), "has other backends in its slots")
				break
			}
		}
	}
	return nil
}

func (c *controller) verifyTables() error {
	var have []uint32
	for key, e := range c.entries {
		if e.table == nil {
			continue
		}
		if have == nil {
			var err error
			if _, have, err = c.maps.Maglev.Dump(); err != nil {
				return err
			}
		}
		if c.tables.sum(servicemaps.Slice(have, e.table.at, e.table.size)) != e.table.sum {
			e.damaged = true
			c.tables.forget(e.table)
			c.differs(key, c.maps.Maglev.Name(), "has other backends in its table")
		}
	}
	return nil
}

func (c *controller) verifyMembers() error {
	have, err := compare(c, c.maps.Members, func(m bpf.AffinityMember) bool {
		b := c.belong[m.Service]
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
	for id, b := range c.belong {
		for backend, m := range b.members {
			scopes, found := have[bpf.AffinityMember{Service: id, Backend: backend}]
			if scopes == m.has {
				continue
			}
			what := fmt.Sprintf("has backend %d in other scopes", backend)
			if m.has = scopes; found {
				b.members[backend] = m
			} else {
				strike(b.members, backend, &c.members)
				what = fmt.Sprintf("has lost backend %d", backend)
			}
			c.differs(b.of, c.maps.Members.Name(), what)
		}
	}
	return err
}

func (c *controller) verifyRanges() error {
	have, err := compare(c, c.maps.Ranges, func(r bpf.SourceRangeKey) bool {
		b, p := c.belong[r.Service], bpf.SourceRangeOf(r)
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
	for id, b := range c.belong {
		for r := range b.ranges {
			if _, found := have[bpf.NewSourceRangeKey(id, r)]; !found {
				strike(b.ranges, r, &c.ranges)
				c.differs(b.of, c.maps.Ranges.Name(), fmt.Sprintf("has lost %s", r))
			}
		}
	}
	return err
}
