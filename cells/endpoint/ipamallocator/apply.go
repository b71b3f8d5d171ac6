package ipamallocator

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// Owners of addresses that no pod can have.
const (
	ownerRouter  = "router"
	ownerHealth  = "health"
	ownerNetwork = "network"   // the first address of a range
	ownerLast    = "broadcast" // the last address of a range; IPv6 has no broadcast, but both families are treated alike
	ownerNode    = "node-ip"
)

// apply sets the ranges, the excluded addresses and the router and health addresses, and returns the addresses of waggle_host in use. Endpoints keep their
// addresses when the range changes; only new addresses come from the new range.
func (a *allocator) apply(ipv4, ipv6 wanted) (routers, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range []struct {
		*family
		wanted
	}{{&a.ipv4, ipv4}, {&a.ipv6, ipv6}} {
		if !f.enabled {
			continue
		}
		if err := a.applyFamily(f.family, f.wanted); err != nil {
			return routers{}, fmt.Errorf("apply %s range %s: %w", f.name, f.prefix, err)
		}
	}
	a.wakeWaiters()
	return routers{a.ipv4.router, a.ipv6.router, a.ipv4.health, a.ipv6.health}, nil
}

func (a *allocator) applyFamily(f *family, w wanted) error {
	f.waitingFor = w.waitingFor
	if !w.prefix.IsValid() {
		return nil // the family keeps its current range, if any
	}
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	free := f.free
	if free == nil || free.Prefix() != w.prefix {
		free = ipalloc.New(w.prefix, a.settings.strategy, newGenerator())
	}
	excluded := exclusions(w)
	if err := a.exclude(txn, f.name, excluded); err != nil {
		return err
	}
	a.takeRows(txn, free)
	router, err := a.reserve(txn, free, w.prefix, reservation{ownerRouter, f.router, w.routers, w.prefix.Addr()})
	waitingFor := ""
	switch {
	case errors.Is(err, ipam.ErrExhausted):
		waitingFor = err.Error()
	case err != nil:
		return err
	}
	health, err := a.healthIn(txn, f, free, w, router)
	if err != nil {
		return err
	}
	txn.Commit()
	f.free, f.excluded, f.router, f.health, f.waitingFor = free, excluded, router, health, waitingFor
	return nil
}

// healthIn returns the health address, the second address of waggle_host. It is allocated after the router's, so that the lower of the two is the router's when
// waggle_host is their only record. A full range has none.
func (a *allocator) healthIn(txn statedb.WriteTxn, f *family, free *ipalloc.Allocator, w wanted, router netip.Addr) (netip.Addr, error) {
	if !a.settings.health || !router.IsValid() {
		return netip.Addr{}, nil
	}
	health, err := a.reserve(txn, free, w.prefix, reservation{ownerHealth, f.health, w.healths, router})
	if errors.Is(err, ipam.ErrExhausted) {
		return netip.Addr{}, nil
	}
	return health, err
}

// exclusions returns the owners of the addresses that no pod may get.
func exclusions(w wanted) map[netip.Addr]string {
	owners := map[netip.Addr]string{}
	for _, addr := range w.nodeIPs {
		owners[addr] = ownerNode
	}
	if ipalloc.Size(w.prefix) > 2 {
		owners[w.prefix.Addr()], owners[ipalloc.Last(w.prefix)] = ownerNetwork, ownerLast
	}
	return owners
}

// exclude makes the excluded rows of a family match owners. It skips addresses that already have another row; [allocator.endQuarantine] excludes them.
func (a *allocator) exclude(txn statedb.WriteTxn, family string, owners map[netip.Addr]string) error {
	for row := range a.table.All(txn) {
		if row.Addr.Is4() == (family == "ipv4") && row.State == ipamaddresses.Excluded && owners[row.Addr] != row.Owner {
			if _, _, err := a.table.Delete(txn, row); err != nil {
				return err
			}
			if f := a.anyFamilyOf(row.Addr); f.free != nil {
				f.free.Free(row.Addr)
			}
		}
	}
	for addr, owner := range owners {
		if _, _, taken := a.table.Get(txn, ipamaddresses.ByAddr(addr)); taken {
			continue
		}
		if err := a.insertExcluded(txn, addr, owner); err != nil {
			return err
		}
	}
	return nil
}

func (a *allocator) insertExcluded(txn statedb.WriteTxn, addr netip.Addr, owner string) error {
	row := address{Addr: addr, Pool: a.settings.pool, State: ipamaddresses.Excluded, Owner: owner, Since: time.Now()}
	_, _, err := a.table.Insert(txn, row)
	return err
}

// takeRows marks every address with a row as taken.
func (a *allocator) takeRows(txn statedb.ReadTxn, free *ipalloc.Allocator) {
	for row := range a.table.All(txn) {
		free.Take(row.Addr) // false if the address is outside the range or already taken
	}
}

// routerMissing reports whether a family has a range but no router address.
func (a *allocator) routerMissing() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	missing := func(f *family) bool { return f.free != nil && !f.router.IsValid() }
	return missing(&a.ipv4) || missing(&a.ipv6)
}

// report sets the health of the module from the state of the families.
func (a *allocator) report(health cell.Health) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ready, missing []string
	for _, f := range []*family{&a.ipv4, &a.ipv6} {
		switch {
		case !f.enabled:
		case f.ready():
			ready = append(ready, f.free.Prefix().String())
		default:
			missing = append(missing, f.name+" waits for "+f.waitingFor)
		}
	}
	if len(missing) > 0 {
		health.Degraded("no addresses for pods", fmt.Errorf("%w: %s", ipam.ErrNoRange, strings.Join(missing, "; ")))
		return
	}
	health.OK("allocating addresses from " + strings.Join(ready, " and "))
}

// newGenerator returns a random generator with a seed that cannot be predicted.
func newGenerator() *mathrand.Rand {
	var seed [16]byte
	_, _ = rand.Read(seed[:]) // never fails
	return mathrand.New(mathrand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
}
