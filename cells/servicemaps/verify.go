package servicemaps

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// few is how many entries are read back at once. Of more each run reads one map.
const few = 5000

// differences are what one look has found.
type differences struct {
	*controller
	rows     map[bpf.ServiceKey]finding // by scope external
	backends map[uint32]finding
}

type finding struct{ in, what string }

// verify compares the maps with what was written. Rows that differ become pending, so that the loop writes them again; what nobody wants is
// removed at once, because nobody else writes meanwhile.
func (c *controller) verify(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inForce == nil || !c.complete {
		return nil // there may be entries of the run before
	}
	before := c.DB.ReadTxn()
	d := differences{c, map[bpf.ServiceKey]finding{}, map[uint32]finding{}}
	looks := []func() error{d.lookAtServices, d.lookAtBackends, d.lookAtSlots, d.lookAtTables, d.lookAtMembers, d.lookAtRanges}
	if len(c.entries)+len(c.inForce.backends) > few {
		looks = looks[c.verified%len(looks):][:1]
	}
	c.verified++
	var errs []error
	for _, look := range looks {
		errs = append(errs, look())
	}
	c.forgotten(before)
	d.mark(before)
	return errors.Join(errs...)
}

// mark makes rows pending.
func (d *differences) mark(before statedb.ReadTxn) {
	if len(d.rows) > 0 {
		drift.Mark(d.Drift, d.Frontends.Table, before, func(row *frontends.Frontend) []driftrepairs.Finding {
			f, found := d.rows[bpf.NewServiceKey(row.Address, bpf.ScopeExternal)]
			return drift.If(found, driftrepairs.MapEntry, f.in, f.what)
		})
	}
	if len(d.backends) > 0 {
		drift.Mark(d.Drift, d.Backends.Table, before, func(row *backends.Backend) []driftrepairs.Finding {
			f, found := d.backends[row.ID]
			return drift.If(found, driftrepairs.MapEntry, f.in, f.what)
		})
	}
}

// forgotten finds backends whose row has got another id, which no change of the table tells.
func (c *controller) forgotten(txn statedb.ReadTxn) {
	for id, b := range c.inForce.backends {
		if _, _, found := c.Backends.Table.Get(txn, backends.ByID(id)); !found && b.wanted {
			c.goneBackend(id)
		}
	}
}

// frontend notes that an entry or something that belongs to it is not what was written.
func (d *differences) frontend(key bpf.ServiceKey, in, what string) {
	key.Scope = bpf.ScopeExternal
	if _, found := d.rows[key]; !found {
		d.rows[key] = finding{in, fmt.Sprintf("%s %s", bpf.AddressOfService(key), what)}
	}
}

// compare reads a map back. Entries that were not written are removed.
func compare[K comparable, V comparable](d *differences, table servicemaps.Table[K, V], wanted func(K) bool, name func(K) string) (map[K]V, error) {
	keys, values, err := table.Dump()
	if err != nil {
		return nil, err
	}
	have := make(map[K]V, len(keys))
	var strangers []K
	for i, key := range keys {
		have[key] = values[i]
		if !wanted(key) {
			strangers = append(strangers, key)
			d.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: table.Name(), Found: name(key) + " is nobody's"})
		}
	}
	return have, table.Delete(strangers).Error()
}

// wrong says how an entry differs, "" when it does not.
func wrong[K, V comparable](have map[K]V, key K, want V) string {
	switch value, found := have[key]; {
	case !found:
		return "is missing"
	case value != want:
		return "has another value"
	}
	return ""
}

func (d *differences) lookAtServices() error {
	have, err := compare(d, d.maps.Services, func(k bpf.ServiceKey) bool { return d.entries[k] != nil },
		func(k bpf.ServiceKey) string { return bpf.AddressOfService(k).String() })
	if have == nil {
		return err
	}
	for key, e := range d.entries {
		if what := wrong(have, key, e.value); what != "" {
			e.changed = true
			d.frontend(key, d.maps.Services.Name(), what)
		}
	}
	return err
}

func (d *differences) lookAtBackends() error {
	have, err := compare(d, d.maps.Backends, func(id uint32) bool { return d.inForce.backends[id] != nil },
		func(id uint32) string { return fmt.Sprint("backend ", id) })
	if have == nil {
		return err
	}
	for id, b := range d.inForce.backends {
		if what := wrong(have, id, b.value); what != "" {
			b.changed = true
			d.backends[id] = finding{d.maps.Backends.Name(), fmt.Sprintf("backend %d %s", id, what)}
		}
	}
	return err
}

func (d *differences) lookAtSlots() error {
	_, have, err := d.maps.Slots.Dump()
	if err != nil {
		return err
	}
	for key, e := range d.entries {
		for i, id := range d.list(e) {
			if have[int(e.value.First)+i] != id {
				e.damaged = true
				d.frontend(key, d.maps.Slots.Name(), "has other backends in its slots")
				break
			}
		}
	}
	return nil
}

func (d *differences) lookAtTables() error {
	var have []uint32
	for key, e := range d.entries {
		if e.table == nil {
			continue
		}
		if have == nil {
			var err error
			if _, have, err = d.maps.Maglev.Dump(); err != nil {
				return err
			}
		}
		if d.tables.sum(servicemaps.Slice(have, e.table.at, e.table.size)) != e.table.sum {
			e.damaged = true
			d.tables.forget(e.table)
			d.frontend(key, d.maps.Maglev.Name(), "has other backends in its table")
		}
	}
	return nil
}

func (d *differences) lookAtMembers() error {
	have, err := compare(d, d.maps.Members, func(m bpf.AffinityMember) bool {
		b := d.belong[m.Service]
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
	for id, b := range d.belong {
		for backend := range b.members {
			if _, found := have[bpf.AffinityMember{Service: id, Backend: backend}]; !found {
				delete(b.members, backend)
				d.frontend(b.of, d.maps.Members.Name(), fmt.Sprintf("has lost backend %d", backend))
			}
		}
	}
	return err
}

func (d *differences) lookAtRanges() error {
	have, err := compare(d, d.maps.Ranges, func(r bpf.SourceRangeKey) bool {
		b, p := d.belong[r.Service], bpf.SourceRangeOf(r)
		if b == nil || bpf.NewSourceRangeKey(r.Service, p) != r {
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
	for id, b := range d.belong {
		for prefix := range b.ranges {
			if _, found := have[bpf.NewSourceRangeKey(id, prefix)]; !found {
				delete(b.ranges, prefix)
				d.frontend(b.of, d.maps.Ranges.Name(), fmt.Sprintf("has lost %s", prefix))
			}
		}
	}
	return err
}
