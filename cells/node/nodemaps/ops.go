package nodemaps

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
)

// ops writes rows to the maps. Programs send to the address of a slot only while node_addrs assigns it to the same node: a slot that is read during a write may
// have half of an address, which node_addrs does not contain. The order of writes keeps an address valid while the slot has it.
type ops struct {
	kernel kernel
	// owners and addrs cache the last written state of the map node_addrs, by address and by id; nil before the map is read.
	owners map[netip.Addr]uint16
	addrs  map[uint16][]netip.Addr
	stale  atomic.Bool // another program has changed the maps
}

func newOps(k kernel) *ops { return &ops{kernel: k} }

func newReconciler(params reconciler.Params, table statedb.RWTable[*nodeslots.Slot], o *ops) (reconciler.Reconciler[*nodeslots.Slot], error) {
	return mapreconciler.Register(params, "node-maps", table, o, nil)
}

// Update implements reconciler.Operations.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *nodeslots.Slot) error {
	if err := o.read(); err != nil {
		return err
	}
	for _, addr := range s.Addrs {
		if err := o.own(addr, s.ID); err != nil {
			return err
		}
	}
	if err := o.put(s.ID, slotOf(s)); err != nil {
		return err
	}
	return o.disown(s.ID, s.Addrs)
}

// Delete implements reconciler.Operations.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *nodeslots.Slot) error {
	if err := o.read(); err != nil {
		return err
	}
	return o.clear(s.ID)
}

// Prune implements reconciler.Operations. The cell owns all entries.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*nodeslots.Slot, statedb.Revision]) error {
	have, err := o.load()
	if err != nil {
		return err
	}
	var errs []error
	for s := range rows {
		delete(have, s.ID)
		errs = append(errs, o.disown(s.ID, s.Addrs))
	}
	for id := range have {
		errs = append(errs, o.clear(id))
	}
	return errors.Join(errs...)
}

// read loads the entries of the previous run or of another program, if the cache is missing or stale.
func (o *ops) read() error {
	if !o.stale.Swap(false) && o.owners != nil {
		return nil
	}
	_, err := o.load()
	return err
}

func (o *ops) load() (map[uint16]state, error) {
	have, err := o.kernel.Dump()
	if err != nil {
		o.stale.Store(true)
		return nil, err
	}
	o.owners, o.addrs = map[netip.Addr]uint16{}, map[uint16][]netip.Addr{}
	for id, s := range have {
		o.addrs[id] = s.addrs
		for _, addr := range s.addrs {
			o.owners[addr] = id
		}
	}
	return have, nil
}

// own assigns an address to a node.
func (o *ops) own(addr netip.Addr, id uint16) error {
	if err := o.kernel.PutAddr(addr, id); err != nil {
		return fmt.Errorf("write %s to the map %s: %w", addr, bpf.MapNodeAddrs, err)
	}
	if o.owners[addr] = id; !slices.Contains(o.addrs[id], addr) {
		o.addrs[id] = append(slices.Clip(o.addrs[id]), addr)
	}
	return nil
}

// disown deletes the addresses of a node except those in stay, unless another node owns them now.
func (o *ops) disown(id uint16, stay []netip.Addr) error {
	var kept []netip.Addr
	var errs []error
	for _, addr := range o.addrs[id] {
		owner, found := o.owners[addr]
		switch {
		case !found || owner != id:
			continue
		case slices.Contains(stay, addr):
		default:
			err := o.kernel.DeleteAddr(addr)
			if err == nil {
				delete(o.owners, addr)
				continue
			}
			errs = append(errs, fmt.Errorf("delete %s from the map %s: %w", addr, bpf.MapNodeAddrs, err))
		}
		kept = append(kept, addr)
	}
	o.addrs[id] = kept
	return errors.Join(errs...)
}

func (o *ops) put(id uint16, slot bpf.Node) error {
	if err := o.kernel.PutSlot(id, slot); err != nil {
		return fmt.Errorf("write slot %d of the map %s: %w", id, bpf.MapNodes, err)
	}
	return nil
}

// clear removes the slot and the addresses of a node.
func (o *ops) clear(id uint16) error {
	return errors.Join(o.put(id, bpf.Node{}), o.disown(id, nil))
}

// slotOf returns the slot of a row.
func slotOf(s *nodeslots.Slot) (slot bpf.Node) {
	if s.Direct {
		slot.Mode, slot.Mtu = bpf.NodeDirect, s.MTU
	}
	if s.Routed {
		slot.Flags = bpf.NodeRouted
	}
	if !s.Underlay.IsValid() {
		return slot
	}
	key := bpf.NewAddrKey(s.Underlay)
	slot.Family, slot.Underlay, slot.Mtu, slot.Ifindex = key.Family, key.Addr, s.MTU, s.Checksums
	if s.Source.IsValid() {
		slot.UnderlaySource = bpf.NewAddrKey(s.Source).Addr
	}
	return slot
}
