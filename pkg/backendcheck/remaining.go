package backendcheck

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// Exists reports whether an address belongs to a pod or a node of the cluster: connections to it stay open when its backend is removed, because the backend may
// only have left its services. Every address exists until all pods and nodes are known. It does not exist if only the world or a rule of a policy has it.
func (t Tables) Exists(txn statedb.ReadTxn, addr netip.Addr) bool {
	addr = addr.Unmap()
	row, _, found := t.IPCache.Get(txn, ipcache.ByPrefix(netip.PrefixFrom(addr, addr.BitLen())))
	if found && row.Source >= ipcache.SourceRemote {
		return true
	}
	known, _ := t.IPCache.Initialized(txn)
	return !known
}

// Remaining are addresses that have connections, but no backend. A reader of connections adds them, and waits for the end of one: the table ipcache changes all
// the time, has a row for each pod of the cluster, and no watch channel for a single row, so the reader does not read its connections at each change.
type Remaining struct {
	mu    sync.Mutex
	addrs map[netip.Addr]struct{}
	ended chan struct{} // closed when an address does not exist any more; nil before the first [Remaining.Begin]
}

// Begin forgets all addresses, before connections are read. The returned channel is closed when an address that is added afterwards does not exist any more.
func (r *Remaining) Begin() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addrs, r.ended = map[netip.Addr]struct{}{}, make(chan struct{})
	return r.ended
}

// Add adds an address. Before the first [Remaining.Begin] it does nothing.
func (r *Remaining) Add(addr netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		r.addrs[addr] = struct{}{}
	}
}

// Check closes the channel if an address does not exist in a snapshot. A reader calls it after its last connection, with a new snapshot: an address may have
// ended between its look-up and [Remaining.Add].
func (r *Remaining) Check(txn statedb.ReadTxn, t Tables) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr := range r.addrs {
		if !t.Exists(txn, addr) {
			close(r.ended)
			r.addrs, r.ended = nil, nil
			return
		}
	}
}

// checkPause is the minimum time between two checks. A check is a look-up for each address.
const checkPause = time.Second

// Run checks the addresses after each change of the pods and nodes. It must run in a job of package watchdog.
func (r *Remaining) Run(ctx context.Context, health cell.Health, db *statedb.DB, t Tables) error {
	health.OK("waiting for the end of pods and nodes")
	return loop.Run(ctx, db, loop.Options{Pause: checkPause}, func(round *loop.Round) error {
		round.Watch(t.IPCache)
		round.Complete(t.IPCache)
		r.Check(round.Txn, t)
		return nil
	})
}
