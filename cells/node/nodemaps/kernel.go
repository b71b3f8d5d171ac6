package nodemaps

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// state is the entries of one id in the maps.
type state struct {
	slot  bpf.Node
	addrs []netip.Addr // in map order
}

// kernel is the interface to the two maps.
type kernel interface {
	PutSlot(id uint16, slot bpf.Node) error
	PutAddr(addr netip.Addr, id uint16) error
	DeleteAddr(addr netip.Addr) error // a missing entry is a success
	// Dump returns all ids with an entry in either map.
	Dump() (map[uint16]state, error)
}

// realKernel implements [kernel] with the pinned maps.
type realKernel struct{ maps pinnedmaps.Maps }

func newKernel(m pinnedmaps.Maps) kernel { return realKernel{m} }

func (k realKernel) PutSlot(id uint16, slot bpf.Node) error {
	return k.maps.Put(bpf.MapNodes, uint32(id), slot)
}

func (k realKernel) PutAddr(addr netip.Addr, id uint16) error {
	return k.maps.Put(bpf.MapNodeAddrs, bpf.NewAddrKey(addr), bpf.NodeAddr{Node: id, Kind: bpf.NodeUnderlay})
}

func (k realKernel) DeleteAddr(addr netip.Addr) error {
	if err := k.maps.Delete(bpf.MapNodeAddrs, bpf.NewAddrKey(addr)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (k realKernel) Dump() (map[uint16]state, error) {
	all := map[uint16]state{}
	if err := pinnedmaps.Each(k.maps, bpf.MapNodes, func(id uint32, slot bpf.Node) {
		if slot != (bpf.Node{}) {
			all[uint16(id)] = state{slot: slot}
		}
	}); err != nil {
		return nil, err
	}
	err := pinnedmaps.Each(k.maps, bpf.MapNodeAddrs, func(key bpf.AddrKey, entry bpf.NodeAddr) {
		s := all[entry.Node]
		s.addrs = append(s.addrs, bpf.AddrOf(key))
		all[entry.Node] = s
	})
	for _, s := range all {
		slices.SortFunc(s.addrs, netip.Addr.Compare)
	}
	return all, err
}
