package ipcache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// ops pushes rows into the maps, and raises epochs once for each batch that changed them.
type ops struct {
	kernel   kernel
	nodes    nodes
	replaced replaced
	// Flows that may have been evaluated by what the maps no longer say: all, or those with peers of these shards. It begins with all:
	// an earlier run may have ended between a change and its epoch.
	allStale bool
	stale    map[uint32]struct{}
}

// mostShards is how many shards are raised one by one; with more, all flows are evaluated again instead.
const mostShards = 256

// replaced reports whether every hook runs programs of this generation. Programs of the generation before know no shards.
type replaced func() bool

func newReplaced(db *statedb.DB, table statedb.Table[*attachments.Attachment]) replaced {
	return func() bool { return attachments.Replaced(db.ReadTxn(), table) }
}

func newOps(k kernel, n nodes, r replaced) *ops {
	return &ops{kernel: k, nodes: n, replaced: r, allStale: true, stale: make(map[uint32]struct{})}
}

// UpdateBatch implements reconciler.BatchOperations.
func (o *ops) UpdateBatch(_ context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*ipcachetable.Entry]) {
	o.each(batch, func(e *ipcachetable.Entry) error { return o.put(txn, e) })
}

// DeleteBatch implements reconciler.BatchOperations.
func (o *ops) DeleteBatch(_ context.Context, _ statedb.ReadTxn, batch []reconciler.BatchEntry[*ipcachetable.Entry]) {
	o.each(batch, func(e *ipcachetable.Entry) error { return o.remove(e.Prefix()) })
}

// each works on a batch. When epochs cannot be raised, nothing of the batch has succeeded: all of it is tried again.
func (o *ops) each(batch []reconciler.BatchEntry[*ipcachetable.Entry], do func(*ipcachetable.Entry) error) {
	for i := range batch {
		batch[i].Result = do(batch[i].Object)
	}
	err := o.raise()
	for i := range batch {
		batch[i].Result = errors.Join(batch[i].Result, err)
	}
}

// Update implements reconciler.Operations.
func (o *ops) Update(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, e *ipcachetable.Entry) error {
	return errors.Join(o.put(txn, e), o.raise())
}

// Delete implements reconciler.Operations.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *ipcachetable.Entry) error {
	return errors.Join(o.remove(e.Prefix()), o.raise())
}

// Prune implements reconciler.Operations. All entries of the two maps are ours.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*ipcachetable.Entry, statedb.Revision]) error {
	have, err := o.kernel.Dump()
	if err != nil {
		return fmt.Errorf("read the map ipcache: %w", err)
	}
	for e := range rows {
		delete(have, e.Prefix())
	}
	var errs []error
	for prefix := range have {
		errs = append(errs, o.remove(prefix))
	}
	return errors.Join(append(errs, o.raise())...)
}

func (o *ops) put(txn statedb.ReadTxn, e *ipcachetable.Entry) error {
	have, found, err := o.kernel.Get(e.Prefix())
	want, peer := o.nodes.value(txn, e, have), o.nodes.peer(txn, e)
	same := err == nil && found && have == want
	if same && !peer.IsValid() { // a peer is only in the former map, which is not read
		return nil
	}
	if err := o.kernel.Put(e.Prefix(), want, peer); err != nil {
		return fmt.Errorf("write %s to the map ipcache: %w", e.Prefix(), err)
	}
	if !same {
		o.changed(e.Prefix())
	}
	return nil
}

func (o *ops) remove(prefix netip.Prefix) error {
	if err := o.kernel.Delete(prefix); err != nil {
		return fmt.Errorf("delete %s from the map ipcache: %w", prefix, err)
	}
	o.changed(prefix)
	return nil
}

func (o *ops) changed(prefix netip.Prefix) {
	if prefix.IsSingleIP() {
		o.stale[bpf.EpochShard(prefix.Addr())] = struct{}{}
	} else {
		o.allStale = true
	}
}

func (o *ops) raise() error {
	if !o.allStale && len(o.stale) == 0 {
		return nil
	}
	var err error
	if o.allStale || len(o.stale) > mostShards || !o.replaced() {
		err = o.kernel.RaiseAll()
	} else {
		err = o.kernel.Raise(slices.Sorted(maps.Keys(o.stale)))
	}
	if err != nil {
		return fmt.Errorf("raise epochs of the map ipcache, without which established flows are not evaluated again: %w", err)
	}
	o.allStale = false
	clear(o.stale)
	return nil
}

// value is what the maps say of a prefix.
type value struct {
	Identity uint32
	Node     uint16 // id of the other node that has it; 0 for none
}
