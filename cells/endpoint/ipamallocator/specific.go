package ipamallocator

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// Specific implements [ipamallocator.Allocator].
func (a *allocator) Specific(ctx context.Context, addr netip.Addr, owner, pool string) error {
	pool, err := a.pool(pool)
	if err != nil {
		return err
	}
	if err := checkOwner(owner); err != nil {
		return err
	}
	f, err := a.familyOf(addr)
	if err != nil {
		return fmt.Errorf("allocate address %s: %w", addr, err)
	}
	if err := a.wait(ctx, f); err != nil {
		return fmt.Errorf("allocate address %s: %w", addr, err)
	}
	defer a.mu.Unlock()
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	if err := a.available(txn, f, addr); err != nil {
		return fmt.Errorf("allocate address %s: %w", addr, err)
	}
	row := address{Addr: addr, Pool: pool, State: ipamaddresses.Allocated, Owner: owner, Since: time.Now()}
	if err := a.hand(txn, row); err != nil {
		return fmt.Errorf("allocate address %s: %w", addr, err)
	}
	txn.Commit()
	f.free.Take(addr)
	f.events.Allocations++
	return nil
}

// available returns an error unless addr is free and may be allocated by name.
func (a *allocator) available(txn statedb.ReadTxn, f *family, addr netip.Addr) error {
	if !f.ready() {
		return fmt.Errorf("%w: waiting for %s", ipam.ErrNoRange, f.waitingFor)
	}
	if row, _, ok := a.table.Get(txn, ipamaddresses.ByAddr(addr)); ok {
		return takenBy(row)
	}
	if !f.contains(addr) {
		return fmt.Errorf("%w. The range of valid IPs is %s", ipam.ErrNotInRange, f.free.Prefix())
	}
	return nil
}

// takenBy returns the error for an address that has a row.
func takenBy(row address) error {
	switch row.State {
	case ipamaddresses.Excluded, ipamaddresses.Reserved:
		return fmt.Errorf("%w, owned by %s", ipam.ErrExcluded, quote(row.Owner))
	case ipamaddresses.Quarantined:
		return fmt.Errorf("%w: in quarantine until %s, released by %s", ipam.ErrTaken,
			row.Expiry.UTC().Format(time.RFC3339), quote(row.Owner))
	}
	return fmt.Errorf("%w: %s by %s", ipam.ErrTaken, row.State, quote(row.Owner))
}

// familyOf returns the family of an address.
func (a *allocator) familyOf(addr netip.Addr) (*family, error) {
	f := &a.ipv6
	switch {
	case !addr.IsValid(), addr.Is4In6(), addr.Zone() != "":
		return nil, fmt.Errorf("%w: not a plain IPv4 or IPv6 address", ipam.ErrNotInRange)
	case addr.Is4():
		f = &a.ipv4
	}
	if !f.enabled {
		return nil, fmt.Errorf("%w: %s is disabled (--enable-%s=false)", ipam.ErrNotInRange, f.name, f.name)
	}
	return f, nil
}

// pool validates a pool's name and returns the default pool for an empty name.
func (a *allocator) pool(name string) (string, error) {
	if name != "" && name != a.settings.pool {
		return "", fmt.Errorf("%w %s: this node has only %q", ipam.ErrBadPool, quote(name), a.settings.pool)
	}
	return a.settings.pool, nil
}
