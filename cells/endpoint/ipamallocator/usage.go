package ipamallocator

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
)

const (
	// usageSettle is the minimum time between two writes of usage. No allocation depends on usage.
	usageSettle = 250 * time.Millisecond
	// recount is the interval of a count of all rows without a change.
	recount = time.Minute
)

// tally counts the addresses of both families. It stores the state of each address, so that the cost of a change does not depend on the number of addresses.
type tally struct {
	states map[netip.Addr]ipamaddresses.State
	usages [2]ipam.Usage // IPv4, IPv6
}

// tallyOf returns a tally of all rows.
func tallyOf(txn statedb.ReadTxn, table statedb.Table[address], ranges [2]netip.Prefix) *tally {
	t := &tally{states: make(map[netip.Addr]ipamaddresses.State, table.NumObjects(txn))}
	t.usages = [2]ipam.Usage{ipam.NewUsage("ipv4", ranges[0]), ipam.NewUsage("ipv6", ranges[1])}
	for row := range table.All(txn) {
		t.put(row.Addr, row.State)
	}
	return t
}

// update applies changed rows.
func (t *tally) update(list []statedb.Change[address]) {
	for _, change := range list {
		if change.Deleted {
			t.put(change.Object.Addr, "")
			continue
		}
		t.put(change.Object.Addr, change.Object.State)
	}
}

// put sets the state of an address; empty when the address is free.
func (t *tally) put(addr netip.Addr, now ipamaddresses.State) {
	before, found := t.states[addr]
	for i := range t.usages {
		if found {
			t.usages[i].Add(addr, before, -1)
		}
		if now != "" {
			t.usages[i].Add(addr, now, 1)
		}
	}
	delete(t.states, addr)
	if now != "" {
		t.states[addr] = now
	}
}

// usageLoop updates ipam-usage when ipam-addresses or the counters change. It is a separate loop, so that allocations do not pay for it.
func (a *allocator) usageLoop(usage statedb.RWTable[ipamusage.Usage]) func(context.Context, cell.Health) error {
	return func(ctx context.Context, health cell.Health) error {
		feed, err := a.followAddresses()
		if err != nil {
			return err
		}
		defer feed.Close()
		var t *tally
		options := loop.Options{Tables: []statedb.TableMeta{a.table}, Pause: usageSettle, Interval: recount}
		return loop.Run(ctx, a.db, options, func(r *loop.Round) error {
			list, ranges := feed.UpTo(r.Txn, r.Changed), a.ranges()
			if r.Full || t.usages[0].Range != ranges[0] || t.usages[1].Range != ranges[1] {
				t = tallyOf(r.Txn, a.table, ranges)
			} else {
				t.update(list)
			}
			rows := a.usages(t)
			if err := commitUsage(a.db, usage, rows); err != nil {
				health.Degraded("count addresses", err)
				return err
			}
			health.OK(fmt.Sprintf("%d families", len(rows)))
			return nil
		})
	}
}

// followAddresses subscribes to addresses. The feed starts with all existing rows.
func (a *allocator) followAddresses() (*changefeed.Feed[address], error) {
	txn := a.db.WriteTxn(a.table)
	defer txn.Commit()
	feed, err := changefeed.Follow(txn, a.table)
	if err != nil {
		return nil, fmt.Errorf("follow addresses: %w", err)
	}
	return feed, nil
}

// ranges returns the range of each family; an invalid prefix while the range is unknown.
func (a *allocator) ranges() (list [2]netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, f := range []*family{&a.ipv4, &a.ipv6} {
		if f.free != nil {
			list[i] = f.free.Prefix()
		}
	}
	return list
}

// usages returns the row of each family with a range.
func (a *allocator) usages(t *tally) (rows []ipamusage.Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, f := range []*family{&a.ipv4, &a.ipv6} {
		if u := t.usages[i]; u.Range.IsValid() {
			rows = append(rows, ipamusage.Usage{Family: f.name, Range: u.Range, Capacity: u.Usable.String(), Used: u.Used(),
				Quarantined: u.Quarantined, Excluded: u.Excluded, Outside: u.Outside, Events: f.events})
		}
	}
	return rows
}

// commitUsage writes the rows that differ.
func commitUsage(db *statedb.DB, table statedb.RWTable[ipamusage.Usage], list []ipamusage.Usage) error {
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for _, row := range list {
		if err := rows.Put(txn, table, ipamusage.ByFamily(row.Family), row, rows.Identical); err != nil {
			return err
		}
	}
	txn.Commit()
	return nil
}
