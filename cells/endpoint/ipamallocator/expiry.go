package ipamallocator

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// quarantine writes the row of an address in quarantine; [allocator.rest] updates the queues after the commit.
func (a *allocator) quarantine(txn statedb.WriteTxn, row address, now time.Time) error {
	row.State, row.Since, row.Expiry = ipamaddresses.Quarantined, now, now.Add(a.settings.quarantine)
	row.UUID = ""
	if err := a.ledger.write(row); err != nil { // a full disk must not block the deletion of a pod
		a.log.Warn("A released address will not be quarantined after a restart", "address", row.Addr, "error", err)
	}
	_, _, err := a.table.Insert(txn, row)
	return err
}

// rest moves an address to the quarantine queue. A family that was disabled after the endpoint was created has a queue as well.
func (a *allocator) rest(addr netip.Addr, now time.Time) {
	f := a.anyFamilyOf(addr)
	f.unclaimed.remove(addr)
	if f.quarantined.push(addr, now.Add(a.settings.quarantine)) {
		a.wakeExpiry()
	}
}

func (a *allocator) anyFamilyOf(addr netip.Addr) *family {
	if addr.Is4() {
		return &a.ipv4
	}
	return &a.ipv6
}

func (a *allocator) wakeExpiry() {
	select {
	case a.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// expireLoop expires unclaimed allocations and ends quarantines.
func (a *allocator) expireLoop(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, a.db, loop.Options{}, func(r *loop.Round) error {
		next, err := a.expire(time.Now())
		if err != nil {
			health.Degraded("expire addresses", err)
			return err
		}
		health.OK("running")
		if !next.IsZero() {
			r.Within(time.Until(next))
		}
		r.Changed.Add(a.wake)
		return nil
	})
}

// expire processes all due addresses and returns when it must run again; the zero time means only when woken.
func (a *allocator) expire(now time.Time) (time.Time, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range []*family{&a.ipv4, &a.ipv6} {
		if err := a.expireFamily(f, now); err != nil {
			return time.Time{}, err
		}
	}
	var next time.Time
	for _, q := range []*queue{a.ipv4.unclaimed, a.ipv4.quarantined, a.ipv6.unclaimed, a.ipv6.quarantined} {
		at, ok := q.next()
		if !ok {
			continue
		}
		if !at.After(now) { // the address waits for the collector of flows
			at = now.Add(passRetry)
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, nil
}

// passRetry is the interval of checks for an address whose quarantine is over while flows of its pod may remain. The collector of flows scans within about a
// second of each release.
const passRetry = time.Second

// rested yields the addresses whose quarantine ends by the given time, and whose flows are gone: a pass over all maps of flows began after the release.
func (a *allocator) rested(txn statedb.ReadTxn, f *family, at time.Time) iter.Seq[due] {
	return func(yield func(due) bool) {
		for d := range f.quarantined.ended(at) {
			row, _, found := a.table.Get(txn, ipamaddresses.ByAddr(d.addr))
			if found && a.flows != nil && !conntrack.PassedSince(txn, a.flows, row.Since) {
				continue
			}
			if !yield(d) {
				return
			}
		}
	}
}

// endQuarantine deletes the row of an address, or replaces it if the address was excluded while a pod had it.
func (a *allocator) endQuarantine(txn statedb.WriteTxn, f *family, addr netip.Addr) error {
	if owner := f.excluded[addr]; owner != "" {
		return a.insertExcluded(txn, addr, owner)
	}
	_, _, err := a.table.Delete(txn, address{Addr: addr})
	return err
}

func (a *allocator) expireFamily(f *family, now time.Time) error {
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	var unclaimed, free []netip.Addr
	for d := range f.unclaimed.ended(now) {
		row, _, ok := a.table.Get(txn, ipamaddresses.ByAddr(d.addr))
		if !ok {
			continue
		}
		if err := a.quarantine(txn, row, now); err != nil {
			return fmt.Errorf("end the allocation of %s: %w", d.addr, err)
		}
		unclaimed = append(unclaimed, d.addr)
	}
	for d := range a.rested(txn, f, now) {
		if err := a.endQuarantine(txn, f, d.addr); err != nil {
			return fmt.Errorf("end the quarantine of %s: %w", d.addr, err)
		}
		free = append(free, d.addr)
	}
	if len(unclaimed) == 0 && len(free) == 0 {
		return nil
	}
	txn.Commit()
	for _, addr := range free {
		f.quarantined.remove(addr)
		if f.free != nil && f.excluded[addr] == "" {
			f.free.Free(addr)
		}
		a.forget(addr)
	}
	for _, addr := range unclaimed {
		a.rest(addr, now)
		f.events.Expirations++
	}
	return nil
}
