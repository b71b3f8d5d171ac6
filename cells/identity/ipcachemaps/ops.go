package ipcachemaps

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
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// ops writes rows to the maps, and raises epochs once for each batch that changed the maps.
type ops struct {
	kernel   kernel
	nodes    nodeLookup
	replaced replaced
	// allStale and stale record the flows whose verdicts may be outdated: all, or flows with peers of these shards. allStale is initially true, because the
	// previous run may have stopped between a change and its epoch.
	allStale bool
	stale    map[uint32]struct{}
}

// mostShards is the maximum number of shards that are raised one by one. With more, all flows are evaluated again instead.
const mostShards = 256

// replaced reports whether every hook runs programs of this generation. Programs of the previous generation do not read shards.
type replaced func() bool

func newReplaced(db *statedb.DB, table statedb.Table[*attachments.Attachment]) replaced {
	return func() bool { return attachments.Replaced(db.ReadTxn(), table) }
}

func newOps(k kernel, n nodeLookup, r replaced) *ops {
	return &ops{kernel: k, nodes: n, replaced: r, allStale: true, stale: make(map[uint32]struct{})}
}

// UpdateBatch implements reconciler.BatchOperations.
func (o *ops) UpdateBatch(_ context.Context, _ statedb.ReadTxn, batch []reconciler.BatchEntry[*ipcache.Entry]) {
	o.each(batch, o.put)
}

// DeleteBatch implements reconciler.BatchOperations.
func (o *ops) DeleteBatch(_ context.Context, _ statedb.ReadTxn, batch []reconciler.BatchEntry[*ipcache.Entry]) {
	o.each(batch, func(e *ipcache.Entry) error { return o.remove(e.Prefix()) })
}

// each processes a batch. If the epochs cannot be raised, every entry of the batch has failed and is retried.
func (o *ops) each(batch []reconciler.BatchEntry[*ipcache.Entry], do func(*ipcache.Entry) error) {
	for i := range batch {
		batch[i].Result = do(batch[i].Object)
	}
	err := o.raise()
	for i := range batch {
		batch[i].Result = errors.Join(batch[i].Result, err)
	}
}

// Update implements reconciler.Operations.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *ipcache.Entry) error {
	return errors.Join(o.put(e), o.raise())
}

// Delete implements reconciler.Operations.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *ipcache.Entry) error {
	return errors.Join(o.remove(e.Prefix()), o.raise())
}

// Prune implements reconciler.Operations. This cell owns all entries of the two maps.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*ipcache.Entry, statedb.Revision]) error {
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

func (o *ops) put(e *ipcache.Entry) error {
	have, found, err := o.kernel.Get(e.Prefix())
	want, peer := o.nodes.use(e, have)
	same := err == nil && found && have == want
	if same && !peer.IsValid() { // peer is written only to the previous release's map, which is not read
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

// value is the map entry of a prefix.
type value struct {
	Identity uint32
	Node     uint16 // id of the remote node that has the prefix; 0 for none
}
