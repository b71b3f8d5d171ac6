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
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// factsOps writes rows to the array of facts. Only its reconciler writes the array, so a read and a following write of a slot need no lock.
type factsOps struct{ slots slots }

// UpdateBatch implements reconciler.BatchOperations. It writes all slots in one call to keep the time between them short: if an endpoint's policy and the
// identity of its peer change together, the old policy may get the new identity, which it does not include, and deny it.
func (o factsOps) UpdateBatch(_ context.Context, _ statedb.ReadTxn, batch []reconciler.BatchEntry[*bpfendpoints.Facts]) {
	list := make([]slot, len(batch))
	for i, e := range batch {
		list[i] = slotOf(e.Object)
	}
	if o.write(list...) == nil {
		return
	}
	for i := range batch { // a failure of one slot must not block the others
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

// write writes slots with a new revision, unless they are already equal. It writes each slot twice, because the kernel copies a slot in parts: a program that
// reads the new revision with old parts evaluates the flow again when it reads the second new revision.
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

// Prune implements reconciler.Operations. This cell owns all slots.
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

// differs describes how the slot of a row differs from it; empty when they are equal.
func (o factsOps) differs(have map[uint16]bpf.EndpointFacts, f *bpfendpoints.Facts) string {
	s, found := have[f.ID]
	return mapreconciler.Difference(f.ID, found, same(s, slotOf(f).facts))
}

// linksOf returns the operations of the map of links.
func linksOf(k kernel) mapreconciler.Map[*bpfendpoints.Link, uint32, uint16] {
	return mapreconciler.Map[*bpfendpoints.Link, uint32, uint16]{Name: bpf.MapLinks, Entries: k.links,
		Entry: func(l *bpfendpoints.Link) (uint32, uint16) { return l.IfIndex, l.ID }}
}

// addressesOf returns the operations of the map of addresses.
func addressesOf(k kernel) mapreconciler.Map[*bpfendpoints.Address, netip.Addr, bpf.EndpointRef] {
	return mapreconciler.Map[*bpfendpoints.Address, netip.Addr, bpf.EndpointRef]{Name: bpf.MapEndpoints, Entries: k.addresses,
		Entry: func(a *bpfendpoints.Address) (netip.Addr, bpf.EndpointRef) { return a.Addr, refOf(a) }}
}
