package ipamallocator

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// reservation is a request for an address of the node itself in a range.
type reservation struct {
	owner string
	now   netip.Addr   // the current address; invalid when there is none
	seen  []netip.Addr // addresses of previous runs, preferred ones first
	after netip.Addr   // a new address is the first free one from here, or else the first free one of the range
}

// reserve returns the address of a reservation inside the range. It keeps the current address if the range contains it, and otherwise allocates another one.
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

// find returns the first usable previous address, or else a free one.
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
