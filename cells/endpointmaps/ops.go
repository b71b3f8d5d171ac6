package endpointmaps

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// factsOps pushes rows into the array of facts. Only its reconciler writes the array, so reading a slot and writing its
// successor needs no lock.
type factsOps struct{ slots slots }

// UpdateBatch implements reconciler.BatchOperations. Between two slots there is as little time as can be: when both an endpoint's
// policy and somebody's identity are others than before, a policy may meet an identity that it does not know, and deny it.
func (o factsOps) UpdateBatch(_ context.Context, _ statedb.ReadTxn, batch []reconciler.BatchEntry[*bpfendpoints.Facts]) {
	list := make([]slot, len(batch))
	for i, e := range batch {
		list[i] = slotOf(e.Object)
	}
	if o.write(list...) == nil {
		return
	}
	for i := range batch { // a failure of one delays no other
		batch[i].Result = o.write(list[i])
	}
}

// DeleteBatch implements reconciler.BatchOperations.
func (o factsOps) DeleteBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*bpfendpoints.Facts]) {
	for i, e := range batch {
		batch[i].Result = o.Delete(ctx, txn, e.Revision, e.Object)
	}
}

// Update implements reconciler.Operations.
func (o factsOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, f *bpfendpoints.Facts) error {
	return o.write(slotOf(f))
}

// Delete implements reconciler.Operations.
func (o factsOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, f *bpfendpoints.Facts) error {
	return o.write(slot{id: f.ID})
}

// write makes slots what is wanted, with a new revision, unless they are that already. It writes twice, as the kernel copies a slot
// piece by piece: a program that meets the new revision beside something old judges again when it sees the next.
func (o factsOps) write(want ...slot) error {
	changed := make([]slot, 0, len(want))
	for _, s := range want {
		have, err := o.slots.Get(s.id)
		if err != nil {
			return fmt.Errorf("read facts of endpoint %d: %w", s.id, err)
		}
		if !same(have, s.facts) {
			changed = append(changed, slot{s.id, next(have, s.facts)})
		}
	}
	if len(changed) == 0 {
		return nil
	}
	err := o.slots.Put(changed)
	for i, s := range changed {
		changed[i].facts = next(s.facts, s.facts)
	}
	if err == nil {
		err = o.slots.Put(changed)
	}
	if err != nil {
		return fmt.Errorf("write facts of endpoint %d: %w", changed[0].id, err)
	}
	return nil
}

// Prune implements reconciler.Operations. All slots are ours.
func (o factsOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*bpfendpoints.Facts, statedb.Revision]) error {
	have, err := o.slots.Dump()
	if err != nil {
		return err
	}
	for f := range rows {
		delete(have, f.ID)
	}
	var errs []error
	for id := range have {
		errs = append(errs, o.write(slot{id: id}))
	}
	return errors.Join(errs...)
}

// differs says how a slot differs from its row, or nothing.
func (o factsOps) differs(have map[uint16]bpf.EndpointFacts) func(*bpfendpoints.Facts) string {
	return func(f *bpfendpoints.Facts) string {
		s, found := have[f.ID]
		return difference(f.ID, found, same(s, slotOf(f).facts))
	}
}

// entryOps pushes rows of type R into a hash map.
type entryOps[R any, K comparable, V comparable] struct {
	what    string // for messages, "link" or "address"
	entries entries[K, V]
	entry   func(R) (K, V)
}

func linkOps(e entries[uint32, uint16]) entryOps[*bpfendpoints.Link, uint32, uint16] {
	return entryOps[*bpfendpoints.Link, uint32, uint16]{"link", e,
		func(l *bpfendpoints.Link) (uint32, uint16) { return l.IfIndex, l.ID }}
}

func addressOps(e entries[netip.Addr, bpf.EndpointRef]) entryOps[*bpfendpoints.Address, netip.Addr, bpf.EndpointRef] {
	return entryOps[*bpfendpoints.Address, netip.Addr, bpf.EndpointRef]{"address", e,
		func(a *bpfendpoints.Address) (netip.Addr, bpf.EndpointRef) { return a.Addr, refOf(a) }}
}

// key is where the entry of a row stands.
func (o entryOps[R, K, V]) key(row R) K {
	key, _ := o.entry(row)
	return key
}

// Update implements reconciler.Operations.
func (o entryOps[R, K, V]) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row R) error {
	key, v := o.entry(row)
	if err := o.entries.Put(key, v); err != nil {
		return fmt.Errorf("write %s %v to its map: %w", o.what, key, err)
	}
	return nil
}

// Delete implements reconciler.Operations.
func (o entryOps[R, K, V]) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row R) error {
	key, _ := o.entry(row)
	return o.remove(key)
}

func (o entryOps[R, K, V]) remove(key K) error {
	if err := o.entries.Delete(key); err != nil {
		return fmt.Errorf("delete %s %v from its map: %w", o.what, key, err)
	}
	return nil
}

// Prune implements reconciler.Operations. All entries are ours.
func (o entryOps[R, K, V]) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[R, statedb.Revision]) error {
	have, err := o.entries.Dump()
	if err != nil {
		return err
	}
	for row := range rows {
		key, _ := o.entry(row)
		delete(have, key)
	}
	var errs []error
	for key := range have {
		errs = append(errs, o.remove(key))
	}
	return errors.Join(errs...)
}

// differs says how an entry differs from its row, or nothing.
func (o entryOps[R, K, V]) differs(have map[K]V) func(R) string {
	return func(row R) string {
		key, want := o.entry(row)
		v, found := have[key]
		return difference(key, found, v == want)
	}
}

func difference[K any](key K, found, same bool) string {
	switch {
	case !found:
		return fmt.Sprintf("%v is missing", key)
	case !same:
		return fmt.Sprintf("%v has another value", key)
	}
	return ""
}
