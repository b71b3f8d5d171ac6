package servicemaps

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// batches are the writes to other maps that must precede the writes of entries.
type batches struct {
	slots   writes[uint32, uint32, *plan]
	maglev  writes[uint32, uint32, *table]
	members writes[bpf.AffinityMember, uint32, *plan]
	ranges  writes[bpf.SourceRangeKey, uint32, *plan]
}

// changedFrontends lists the rows that have to be brought into force, and marks entries whose row was deleted. Rows that failed are retried if due is true.
func (c *controller) changedFrontends(txn statedb.ReadTxn, changed *statedb.WatchSet, due bool) (plans []*plan) {
	retried := map[bpf.ServiceKey]bool{}
	if due {
		for key := range c.again {
			if row, revision, found := c.Frontends.Table.Get(txn, frontends.ByAddress(bpf.AddressOfService(key))); found {
				retried[key] = true
				plans = append(plans, &plan{row: row, revision: revision, key: key})
			}
			delete(c.again, key)
		}
	}
	for _, change := range c.frontendChanges.UpTo(txn, changed) { // at most one change for each row
		row := change.Object
		key := bpf.NewServiceKey(row.Address, bpf.ScopeExternal)
		switch {
		case change.Deleted:
			c.gone(row.ID, key)
		case row.Status.Kind == reconciler.StatusKindPending && !retried[key]:
			delete(c.again, key)
			plans = append(plans, &plan{row: row, revision: change.Revision, key: key})
		}
	}
	return plans
}

// gone records that a row was deleted.
func (c *controller) gone(id uint32, key bpf.ServiceKey) {
	delete(c.again, key)
	delete(c.deferred.since, key)
	c.disown(id, key)
	p := plan{key: key}
	for _, scope := range []uint8{bpf.ScopeExternal, bpf.ScopeInternal} {
		if e := c.entries[p.keyOf(scope)]; e != nil {
			e.wanted = false
			c.leaving[p.keyOf(scope)] = nil
			c.disown(e.value.Id, key)
		}
	}
}

// disown records that the entry no longer uses the members and ranges of an id.
func (c *controller) disown(id uint32, key bpf.ServiceKey) {
	b := c.belong[id]
	if b == nil || !b.wanted || b.of != key {
		return
	}
	b.wanted, b.unsettled = false, false
	b.wantNothing()
	c.untidy[id] = nil
}

// writeFrontends brings rows into force.
func (c *controller) writeFrontends(plans []*plan, now time.Time) {
	var w batches
	for _, p := range plans {
		c.plan(p, &w)
		c.alive() // a Maglev table may have been computed
	}
	w.slots.put(c.maps.Slots, func(p *plan, _, _ uint32, err error) {
		if err != nil {
			p.slotsFailed = true
			p.fail(err)
		}
	})
	c.alive()
	w.maglev.put(c.maps.Maglev, func(t *table, _, _ uint32, err error) {
		if err != nil {
			t.err = err
		}
	})
	c.alive()
	w.members.put(c.maps.Members, func(p *plan, m bpf.AffinityMember, scopes uint32, err error) {
		if c.recordScopes(m, scopes, err); err != nil {
			p.recordMissing(c.fullIs(c.maps.Members.Name(), err, "--bpf-lb-affinity-map-max"))
		}
	})
	c.alive()
	w.ranges.put(c.maps.Ranges, func(p *plan, r bpf.SourceRangeKey, _ uint32, err error) {
		if err != nil {
			strike(c.belong[r.Service].ranges, bpf.SourceRangeOf(r), &c.ranges)
			p.recordMissing(c.fullIs(c.maps.Ranges.Name(), err, "--bpf-lb-map-max"))
			p.close = p.close || p.row.Deny // otherwise its clients would be allowed
		}
	})
	c.alive()
	for _, p := range plans {
		c.withoutTable(p)
		switch {
		case p.fatal != nil:
			c.undo(p)
		case p.close:
			c.closeOutside(p)
		}
	}
	for _, scope := range []uint8{bpf.ScopeInternal, bpf.ScopeExternal} { // the external entry refers to the internal one
		c.writeEntries(plans, scope, now)
		c.alive()
	}
	for _, p := range plans {
		c.settle(p)
	}
}

// withoutTable removes the reference to a Maglev table that could not be written from its entry.
func (c *controller) withoutTable(p *plan) {
	have, next := c.entries[p.key], p.next[bpf.ScopeExternal]
	if next != nil && next.table != nil && next.table.err != nil {
		p.recordMissing(next.table.err)
		c.tables.forget(next.table)
		c.tables.drop(next.table)
		next.table = nil
		next.value.Maglev, next.value.MaglevSize = 0, 0
		next.value.Flags &^= bpf.ServiceMaglev
	}
	if p.kept[bpf.ScopeExternal] && have.table != nil && have.table.err != nil {
		p.recordMissing(have.table.err)
		c.tables.forget(have.table)
		have.damaged = true
	}
}

// closeOutside changes the external entry of a plan to allow only its ranges, of which a row that denies has none. The rest of the row comes into force, so a
// full map neither delays new backends nor keeps the ranges of a previous policy in force.
func (c *controller) closeOutside(p *plan) {
	have, next := c.entries[p.key], p.next[bpf.ScopeExternal]
	if next == nil { // the entry is kept
		copied := *have
		if next = &copied; next.table != nil {
			next.table.users++
		}
		next.wanted = true
	}
	next.value.Flags &^= bpf.ServiceRangesDeny
	p.next[bpf.ScopeExternal], p.kept[bpf.ScopeExternal] = next, false
	if have != nil && !have.changed && have.value == next.value {
		c.tables.drop(next.table)
		p.next[bpf.ScopeExternal], p.kept[bpf.ScopeExternal] = nil, true
	}
}

// writeEntries writes the entries of one scope.
func (c *controller) writeEntries(plans []*plan, scope uint8, now time.Time) {
	var w writes[bpf.ServiceKey, bpf.Service, *plan]
	for _, p := range plans {
		if next := p.next[scope]; next != nil && p.fatal == nil {
			w.add(p, p.keyOf(scope), next.value)
		}
	}
	w.put(c.maps.Services, func(p *plan, key bpf.ServiceKey, _ bpf.Service, err error) {
		if err != nil {
			p.fail(c.fullIs(c.maps.Services.Name(), err, "--bpf-lb-map-max"))
			c.undo(p)
			return
		}
		c.replace(key, p.next[scope], now)
		p.next[scope] = nil
	})
}

// replace records that an entry is in force.
func (c *controller) replace(key bpf.ServiceKey, next *entry, now time.Time) {
	delete(c.leaving, key)
	if have := c.entries[key]; have != nil {
		was := *have
		if next.shares(have) {
			was.ours = false // the new entry uses the slots
		}
		c.retire(was, c.retainRanges(was.value, next.value), now)
	}
	c.entries[key] = next
}

// retainRanges returns the id of a frontend whose source ranges must stay for the quarantine time, or 0. The replaced entry uses them, and programs may just have
// read that entry.
func (c *controller) retainRanges(was, is bpf.Service) uint32 {
	b := c.belong[was.Id]
	const policy = bpf.ServiceRanges | bpf.ServiceRangesDeny
	if b == nil || was.Id != is.Id || was.Flags&bpf.ServiceRanges == 0 || was.Flags&policy == is.Flags&policy {
		return 0
	}
	b.held++
	return was.Id
}

// settle records the wanted entries after a row has come into force or failed.
func (c *controller) settle(p *plan) {
	if err := p.err(); err != nil {
		c.again[p.key] = fmt.Errorf("apply %s of service %s: %w", p.row.Address, p.row.Service, err)
	}
	for scope, kept := range p.kept {
		key := p.keyOf(uint8(scope))
		have := c.entries[key]
		if kept && have != nil {
			have.wanted = true
			delete(c.leaving, key)
		}
		if _, leaves := c.leaving[key]; p.fatal != nil && have != nil && !leaves && have.value.Id == p.row.ID {
			have.wanted = true // the previous entry stays in force
		}
	}
	if p.fatal != nil {
		return
	}
	delete(c.deferred.since, p.key)
	if internal := p.keyOf(bpf.ScopeInternal); !p.row.TwoScopes && c.entries[internal] != nil {
		c.entries[internal].wanted = false
		c.leaving[internal] = nil
	}
	if b := c.belong[p.row.ID]; b != nil {
		b.unsettled = false
		c.untidy[p.row.ID] = nil
	}
	if p.before != 0 && p.before != p.row.ID {
		c.disown(p.before, p.key)
	}
}

// leave removes entries without a row. An internal entry stays while the external entry refers to it.
func (c *controller) leave(now time.Time) {
	for _, scope := range []uint8{bpf.ScopeExternal, bpf.ScopeInternal} {
		var keys []bpf.ServiceKey
		for key := range c.leaving {
			external := key
			external.Scope = bpf.ScopeExternal
			refers := c.entries[external] != nil && c.entries[external].value.Flags&bpf.ServiceTwoScopes != 0
			if key.Scope == scope && !(scope == bpf.ScopeInternal && refers) {
				keys = append(keys, key)
			}
		}
		remove(c.maps.Services, keys, func(key bpf.ServiceKey, err error) {
			if err != nil {
				c.leaving[key] = fmt.Errorf("remove %s: %w", bpf.AddressOfService(key), err)
				return
			}
			c.retire(*c.entries[key], 0, now)
			delete(c.entries, key)
			delete(c.leaving, key)
			c.roomier = true
		})
	}
}

// recordScopes records the scopes of a member in the map.
func (c *controller) recordScopes(m bpf.AffinityMember, scopes uint32, err error) {
	members := c.belong[m.Service].members
	now := members[m.Backend]
	switch {
	case err == nil:
		now.has = scopes
		members[m.Backend] = now
	case now.has == 0:
		strike(members, m.Backend, &c.members)
	}
}

// tidy removes members and ranges that frontends no longer use.
func (c *controller) tidy() {
	var members []bpf.AffinityMember
	var fewer writes[bpf.AffinityMember, uint32, struct{}]
	var ranges []bpf.SourceRangeKey
	for id := range c.untidy {
		b := c.belong[id]
		if b == nil {
			delete(c.untidy, id)
			continue
		}
		c.untidy[id] = nil
		for backend, m := range b.members {
			switch key := (bpf.AffinityMember{Service: id, Backend: backend}); {
			case m.wants == 0:
				members = append(members, key)
			case m.wants != m.has:
				fewer.add(struct{}{}, key, m.wants)
			}
		}
		for r, wanted := range b.ranges {
			if !wanted && b.held == 0 && !b.unsettled {
				ranges = append(ranges, bpf.NewSourceRangeKey(id, r))
			}
		}
	}
	fewer.put(c.maps.Members, func(_ struct{}, m bpf.AffinityMember, scopes uint32, err error) {
		if c.recordScopes(m, scopes, err); err != nil {
			c.untidy[m.Service] = err
		}
	})
	remove(c.maps.Members, members, func(m bpf.AffinityMember, err error) {
		if err != nil {
			c.untidy[m.Service] = err
			return
		}
		strike(c.belong[m.Service].members, m.Backend, &c.members)
		c.roomier = true
	})
	remove(c.maps.Ranges, ranges, func(r bpf.SourceRangeKey, err error) {
		if err != nil {
			c.untidy[r.Service] = err
			return
		}
		strike(c.belong[r.Service].ranges, bpf.SourceRangeOf(r), &c.ranges)
		c.roomier = true
	})
	for id, err := range c.untidy {
		if err == nil {
			delete(c.untidy, id)
			if c.belong[id].empty() {
				delete(c.belong, id)
			}
		}
	}
}
