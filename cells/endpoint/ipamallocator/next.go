package ipamallocator

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"
	"github.com/google/uuid"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// given is an address that was chosen for a request and has no row of the request yet.
type given struct {
	family *family
	addr   netip.Addr
	reused bool // it is still in quarantine, with a row and a queue entry
	early  bool // its quarantine is not over
}

// Next implements [ipamallocator.Allocator].
func (a *allocator) Next(ctx context.Context, req ipam.Request) (ipam.Result, error) {
	pool, err := a.pool(req.Pool)
	if err != nil {
		return ipam.Result{}, err
	}
	if err := checkOwner(req.Owner); err != nil {
		return ipam.Result{}, err
	}
	families, err := a.families(req)
	if err != nil {
		return ipam.Result{}, err
	}
	if err := a.wait(ctx, families...); err != nil {
		return ipam.Result{}, fmt.Errorf("allocate address: %w", err)
	}
	defer a.mu.Unlock()
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()

	now := time.Now()
	var found []given
	for _, f := range families {
		g, err := a.find(txn, f, now)
		if err != nil {
			a.putBack(found)
			return ipam.Result{}, fmt.Errorf("allocate address: %w", err)
		}
		found = append(found, g)
	}
	var result ipam.Result
	for _, g := range found {
		row := address{Addr: g.addr, Pool: pool, State: ipamaddresses.Allocated, Owner: req.Owner, Since: now}
		if req.Expire {
			row.UUID, row.Expiry = uuid.NewString(), now.Add(ipam.ExpireAfter)
		}
		if err := a.hand(txn, row); err != nil {
			a.putBack(found)
			return ipam.Result{}, fmt.Errorf("allocate address %s: %w", g.addr, err)
		}
		g.family.fill(&result, row)
	}
	txn.Commit()
	for _, g := range found {
		a.keep(g, req.Expire, now)
	}
	return result, nil
}

// maxOwner is enough for the longest "namespace/pod", in bytes.
const maxOwner = 512

// checkOwner limits the memory of a row. Unusual characters are allowed; tables show them quoted.
func checkOwner(owner string) error {
	if len(owner) > maxOwner {
		return fmt.Errorf("allocate address: the owner has %d bytes, at most %d are allowed", len(owner), maxOwner)
	}
	return nil
}

// families returns the families of a request. IPv6 is first because its ranges are larger.
func (a *allocator) families(req ipam.Request) ([]*family, error) {
	all := !req.IPv4 && !req.IPv6
	var families []*family
	for _, f := range []struct {
		*family
		asked bool
	}{{&a.ipv6, req.IPv6}, {&a.ipv4, req.IPv4}} {
		if f.asked && !f.enabled {
			return nil, fmt.Errorf("allocate address: %s is disabled (--enable-%s=false)", f.name, f.name)
		}
		if f.asked || all && f.enabled {
			families = append(families, f.family)
		}
	}
	return families, nil
}

// find returns a free address, or else the address with the longest time in quarantine if that time is sufficient.
func (a *allocator) find(txn statedb.ReadTxn, f *family, now time.Time) (given, error) {
	if addr, ok := f.free.Next(); ok {
		return given{family: f, addr: addr}, nil
	}
	// The quarantine of an address that was released at t ends at t + quarantine; the address may be taken from t + minQuarantine.
	early := now.Add(max(0, a.settings.quarantine-minQuarantine))
	for d := range a.rested(txn, f, early) {
		if f.contains(d.addr) && f.excluded[d.addr] == "" {
			return given{family: f, addr: d.addr, reused: true, early: d.at.After(now)}, nil
		}
	}
	return given{}, a.exhausted(txn, f, now)
}

// hand writes the file and the row of an address before the address is returned.
func (a *allocator) hand(txn statedb.WriteTxn, row address) error {
	if err := a.keepRow(row); err != nil {
		return err
	}
	_, _, err := a.table.Insert(txn, row)
	return err
}

// putBack undoes find and hand. An address that was in quarantine stays in quarantine, but loses its file, so a restart frees it.
func (a *allocator) putBack(found []given) {
	for _, g := range found {
		a.forget(g.addr)
		if !g.reused {
			g.family.free.Free(g.addr)
		}
	}
}

// keep updates queues and counters after the row is committed.
func (a *allocator) keep(g given, expire bool, now time.Time) {
	if g.reused {
		g.family.quarantined.remove(g.addr)
	}
	if g.early {
		g.family.events.EarlyReuses++
	}
	g.family.events.Allocations++
	if expire && g.family.unclaimed.push(g.addr, now.Add(ipam.ExpireAfter)) {
		a.wakeExpiry()
	}
}

// fill adds the allocation of a row to a result.
func (f *family) fill(result *ipam.Result, row address) {
	allocation := &ipam.Allocation{Addr: row.Addr, Range: f.free.Prefix(), Gateway: f.router, Pool: row.Pool, UUID: row.UUID}
	if row.Addr.Is4() {
		result.IPv4 = allocation
		return
	}
	result.IPv6 = allocation
}
