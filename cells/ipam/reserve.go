package ipam

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// reservation is what the node wants for itself in a range.
type reservation struct {
	owner string
	now   netip.Addr   // the address of before; invalid when there is none
	seen  []netip.Addr // where it was in earlier runs, best first
	after netip.Addr   // a fresh address is the first free one from here on, else the first of the range
}

// reserve returns the address of a reservation inside the range, and makes it when there is none.
func (a *allocator) reserve(txn statedb.WriteTxn, free *ipalloc.Allocator, prefix netip.Prefix, r reservation) (netip.Addr, error) {
	if r.now.IsValid() {
		if prefix.Contains(r.now) {
			return r.now, nil
		}
		if _, _, err := a.table.Delete(txn, address{Addr: r.now}); err != nil {
			return netip.Addr{}, err
		}
	}
	addr, err := r.find(free, prefix)
	if err != nil {
		return netip.Addr{}, err
	}
	free.Take(addr)
	row := address{Addr: addr, Pool: a.settings.pool, State: ipamaddresses.Reserved, Owner: r.owner, Since: time.Now()}
	_, _, err = a.table.Insert(txn, row)
	return addr, err
}

// find looks where the address was, and then for a free one.
func (r reservation) find(free *ipalloc.Allocator, prefix netip.Prefix) (netip.Addr, error) {
	for _, addr := range r.seen {
		if prefix.Contains(addr) && !free.Has(addr) {
			return addr, nil
		}
	}
	if free.Used() < free.Size() {
		for _, from := range []netip.Addr{r.after, prefix.Addr()} {
			for addr := from; prefix.Contains(addr); addr = addr.Next() {
				if !free.Has(addr) {
					return addr, nil
				}
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("an address for the %s: %s: %w", r.owner, prefix, ipam.ErrExhausted)
}
