package ipamallocator

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// errRestoring is the error of requests before the addresses of restored endpoints are held.
var errRestoring = errors.New("addresses of previous endpoints are still being restored")

// Claim implements [ipamallocator.Allocator]. A claim and the expiry of its allocation are serialized by mu: the first one wins, and a claim that fails changes nothing.
func (a *allocator) Claim(claims []ipam.Claim) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.restored {
		return fmt.Errorf("claim addresses: %w", errRestoring)
	}
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	now := time.Now()
	for _, c := range claims {
		row, err := a.claimable(txn, c, now)
		if err != nil {
			return fmt.Errorf("claim address %s: %w", c.Addr, err)
		}
		row.State, row.Attachment, row.Since = ipamaddresses.Claimed, c.Attachment, now
		row.UUID, row.Expiry = "", time.Time{}
		if c.Owner != "" {
			row.Owner = c.Owner
		}
		if _, _, err := a.table.Insert(txn, row); err != nil {
			return fmt.Errorf("claim address %s: %w", c.Addr, err)
		}
	}
	txn.Commit()
	a.hold(claims)
	return nil
}

// claimable returns the row of an allocation that the claim may take, or a new row for a free address.
func (a *allocator) claimable(txn statedb.ReadTxn, c ipam.Claim, now time.Time) (address, error) {
	pool, err := a.pool(c.Pool)
	if err != nil {
		return address{}, err
	}
	f, err := a.familyOf(c.Addr)
	if err != nil {
		return address{}, err
	}
	row, _, ok := a.table.Get(txn, ipamaddresses.ByAddr(c.Addr))
	switch {
	case !ok && c.UUID != "":
		return address{}, fmt.Errorf("%w: the address has no owner", ipam.ErrExpired)
	case !ok:
		return address{Addr: c.Addr, Pool: pool}, a.available(txn, f, c.Addr)
	case row.State == ipamaddresses.Quarantined && c.UUID != "":
		return address{}, ipam.ErrExpired
	case row.State != ipamaddresses.Allocated:
		return address{}, takenBy(row)
	case row.UUID != c.UUID, !row.Expiry.IsZero() && !now.Before(row.Expiry):
		return address{}, ipam.ErrExpired
	}
	return row, nil
}

// hold updates queues and bitmaps after the rows of claims are committed.
func (a *allocator) hold(claims []ipam.Claim) {
	for _, c := range claims {
		f, err := a.familyOf(c.Addr)
		if err != nil {
			continue // its row was not written
		}
		f.unclaimed.remove(c.Addr)
		if f.free != nil {
			f.free.Take(c.Addr)
		}
	}
}

// Restore implements [ipamallocator.Allocator].
func (a *allocator) Restore(claims []ipam.Claim) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	var errs []error
	var held []ipam.Claim
	for _, c := range claims {
		if err := a.restore(txn, c); err != nil {
			errs = append(errs, fmt.Errorf("restore address %s: %w", c.Addr, err))
			continue
		}
		held = append(held, c)
	}
	txn.Commit()
	a.hold(held)
	return errors.Join(errs...)
}

// restore holds an address of a restored endpoint regardless of the current flags and ranges.
func (a *allocator) restore(txn statedb.WriteTxn, c ipam.Claim) error {
	if !c.Addr.IsValid() || c.Addr.Is4In6() || c.Addr.Zone() != "" {
		return fmt.Errorf("%w: not a plain IPv4 or IPv6 address", ipam.ErrNotInRange)
	}
	if row, _, ok := a.table.Get(txn, ipamaddresses.ByAddr(c.Addr)); ok {
		return takenBy(row)
	}
	pool := c.Pool
	if pool == "" {
		pool = a.settings.pool
	}
	row := address{Addr: c.Addr, Pool: pool, State: ipamaddresses.Claimed, Owner: c.Owner, Attachment: c.Attachment,
		Since: time.Now()}
	_, _, err := a.table.Insert(txn, row)
	return err
}

// Release implements [ipamallocator.Allocator].
func (a *allocator) Release(addr netip.Addr, pool, attachment string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	row, _, ok := a.table.Get(txn, ipamaddresses.ByAddr(addr))
	if !ok || row.State == ipamaddresses.Quarantined {
		return false, nil
	}
	if pool != "" && pool != row.Pool {
		return true, fmt.Errorf("release address %s: %w %s: it is of pool %q", addr, ipam.ErrBadPool, quote(pool), row.Pool)
	}
	switch {
	case row.State == ipamaddresses.Excluded || row.State == ipamaddresses.Reserved:
		return true, fmt.Errorf("release address %s: %w", addr, takenBy(row))
	case row.State == ipamaddresses.Claimed && row.Attachment != attachment:
		return true, fmt.Errorf("release address %s: %w: %s of %s", addr, ipam.ErrInUse, quote(row.Attachment), quote(row.Owner))
	}
	now := time.Now()
	if err := a.quarantine(txn, row, now); err != nil {
		return true, fmt.Errorf("release address %s: %w", addr, err)
	}
	txn.Commit()
	a.rest(addr, now)
	a.anyFamilyOf(addr).events.Releases++
	return true, nil
}
