package ipam

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

// given is an address that was found for a request and has no row yet.
type given struct {
	family *family
	addr   netip.Addr
	reused bool // it comes out of quarantine, so its row and queue entry are still there
	early  bool // and that quarantine was not over
}

// Next implements [ipam.Allocator].
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

// maxOwner leaves room for the longest "namespace/pod".
const maxOwner = 512

// checkOwner bounds what a row costs. Odd characters are allowed; tables show them quoted.
func checkOwner(owner string) error {
	if len(owner) > maxOwner {
		return fmt.Errorf("allocate address: the owner has %d bytes, at most %d are allowed", len(owner), maxOwner)
	}
	return nil
}

// families resolves a request; IPv6 comes first because it is the roomier.
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

// find takes a free address, or else the one that has been in quarantine longest, if that is long enough.
func (a *allocator) find(txn statedb.ReadTxn, f *family, now time.Time) (given, error) {
	if addr, ok := f.free.Next(); ok {
		return given{family: f, addr: addr}, nil
	}
	// An address released at t is due at t + quarantine; it may be taken from t + minQuarantine.
	early := now.Add(max(0, a.settings.quarantine-minQuarantine))
	for d := range a.rested(txn, f, early) {
		if f.contains(d.addr) {
			return given{family: f, addr: d.addr, reused: true, early: d.at.After(now)}, nil
		}
	}
	return given{}, a.exhausted(txn, f, now)
}

// hand writes down an address that is about to be given.
func (a *allocator) hand(txn statedb.WriteTxn, row address) error {
	if err := a.keepRow(row); err != nil {
		return err
	}
	_, _, err := a.table.Insert(txn, row)
	return err
}

// putBack undoes find and hand. One that came out of quarantine rests on, though after a restart no longer.
func (a *allocator) putBack(found []given) {
	for _, g := range found {
		a.forget(g.addr)
		if !g.reused {
			g.family.free.Free(g.addr)
		}
	}
}

// keep completes find after the row is committed.
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

// fill puts a row into a result.
func (f *family) fill(result *ipam.Result, row address) {
	allocation := &ipam.Allocation{Addr: row.Addr, Range: f.free.Prefix(), Gateway: f.router, Pool: row.Pool, UUID: row.UUID}
	if row.Addr.Is4() {
		result.IPv4 = allocation
		return
	}
	result.IPv6 = allocation
}
