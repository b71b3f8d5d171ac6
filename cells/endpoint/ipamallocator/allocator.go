package ipamallocator

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
)

type (
	address = ipamaddresses.Address
	table   = statedb.RWTable[address]
)

// family is the state of one address family. The allocator's mu guards it.
type family struct {
	name    string // "ipv4" or "ipv6", as in node-cidrs
	enabled bool
	// free finds free addresses of the range; nil before a range is known. Every address of the range that has a row is taken in it.
	free        *ipalloc.Allocator
	router      netip.Addr // invalid until it is chosen
	health      netip.Addr // invalid without a health address
	waitingFor  string     // the missing condition while free or router is unknown
	unclaimed   *queue     // allocations with an expiry
	quarantined *queue
	events      ipamusage.Events
	// excluded holds the owners of the excluded addresses, including addresses that a pod still has.
	excluded map[netip.Addr]string
}

func (f *family) ready() bool { return f.free != nil && f.router.IsValid() }

// contains reports whether addr is in the range.
func (f *family) contains(addr netip.Addr) bool {
	return f.free != nil && f.free.Prefix().Contains(addr)
}

// allocator implements [ipamallocator.Allocator].
//
// Every change holds mu and a write transaction, in this order, and changes files, rows, bitmaps and queues together: files and rows first, and the others only
// when no step can fail any more. No goroutine waits while it holds either.
type allocator struct {
	db       *statedb.DB
	table    table
	settings settings
	ledger   ledger
	log      *slog.Logger
	flows    statedb.Table[conntrack.Map] // nil without a collector of flows

	mu           sync.Mutex
	restored     bool
	initialized  func(statedb.WriteTxn)
	ipv4, ipv6   family
	changed      chan struct{} // closed and replaced when waiting requests must check again
	restoredDone chan struct{} // closed by RestoreDone
	wake         chan struct{} // wakes the loop that expires addresses
}

type allocatorParams struct {
	cell.In

	DB       *statedb.DB
	Table    table
	Settings settings
	Ledger   ledger
	Agent    agentconfig.Agent
	Log      *slog.Logger
	Flows    statedb.Table[conntrack.Map] `optional:"true"`
}

func newAllocator(p allocatorParams) *allocator {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Abort()
	a := &allocator{
		db: p.DB, table: p.Table, settings: p.Settings, ledger: p.Ledger, log: p.Log, flows: p.Flows,
		ipv4:         newFamily("ipv4", p.Agent.EnableIPv4),
		ipv6:         newFamily("ipv6", p.Agent.EnableIPv6),
		changed:      make(chan struct{}),
		restoredDone: make(chan struct{}),
		wake:         make(chan struct{}, 1),
		initialized:  p.Table.RegisterInitializer(txn, "ipam"),
	}
	txn.Commit()
	return a
}

func newFamily(name string, enabled bool) family {
	return family{name: name, enabled: enabled, unclaimed: newQueue(), quarantined: newQueue(),
		waitingFor: "the choice of a pod CIDR"}
}

// RestoreDone implements [ipamallocator.Allocator].
func (a *allocator) RestoreDone() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.restored {
		return
	}
	txn := a.db.WriteTxn(a.table)
	if err := a.restoreLedger(txn); err != nil {
		a.log.Warn("Allocations and releases of the previous run are not completely known", "error", err)
	}
	a.initialized(txn)
	txn.Commit()
	a.wakeExpiry()
	a.restored = true
	close(a.restoredDone)
	a.wakeWaiters()
}

// wakeWaiters wakes all callers of [allocator.wait]. The caller must hold mu.
func (a *allocator) wakeWaiters() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// wait returns nil, with mu held, once addresses of the families can be allocated. With an error mu is not held.
func (a *allocator) wait(ctx context.Context, families ...*family) error {
	for {
		a.mu.Lock()
		missing := a.missing(families)
		if missing == nil {
			return nil
		}
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w (gave up waiting: %w)", missing, context.Cause(ctx))
		}
	}
}

// missing returns the reason why addresses cannot be allocated yet, or nil. The caller must hold mu.
func (a *allocator) missing(families []*family) error {
	if !a.restored {
		return errRestoring
	}
	for _, f := range families {
		if !f.ready() {
			return fmt.Errorf("%s: %w: waiting for %s", f.name, ipam.ErrNoRange, f.waitingFor)
		}
	}
	return nil
}
