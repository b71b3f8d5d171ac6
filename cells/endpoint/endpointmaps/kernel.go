package endpointmaps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// kernel accesses the three maps.
type kernel struct {
	facts     slots
	links     mapreconciler.Entries[uint32, uint16]
	addresses mapreconciler.Entries[netip.Addr, bpf.EndpointRef]
}

// slots is the array of facts. Every id has a slot.
type slots interface {
	Get(id uint16) (bpf.EndpointFacts, error)
	// Put writes slots in order, with as little time between them as the kernel allows.
	Put(list []slot) error
	// Dump reads the slots that are in use.
	Dump() (map[uint16]bpf.EndpointFacts, error)
}

// slot has the id and the facts of one endpoint.
type slot struct {
	id    uint16
	facts bpf.EndpointFacts
}

func newKernel(m pinnedmaps.Batches) kernel {
	return kernel{
		facts: slotArray{m},
		links: mapreconciler.Hash[uint32, uint32, uint16, uint32]{
			Maps: m, Name: bpf.MapLinks,
			Key: mapreconciler.Same[uint32], KeyOf: func(k uint32) (uint32, bool) { return k, true },
			Value: func(v uint16) uint32 { return uint32(v) }, ValueOf: func(v uint32) uint16 { return uint16(v) },
		},
		addresses: mapreconciler.Hash[netip.Addr, bpf.AddrKey, bpf.EndpointRef, bpf.EndpointRef]{
			Maps: m, Name: bpf.MapEndpoints,
			Key: bpf.NewAddrKey, KeyOf: func(k bpf.AddrKey) (netip.Addr, bool) { a := bpf.AddrOf(k); return a, a.IsValid() },
			Value: mapreconciler.Same[bpf.EndpointRef], ValueOf: mapreconciler.Same[bpf.EndpointRef],
		},
	}
}

// slotArray implements slots with the map endpoint_facts.
type slotArray struct{ maps pinnedmaps.Batches }

func (a slotArray) Get(id uint16) (s bpf.EndpointFacts, err error) {
	m, err := a.maps.Get(bpf.MapEndpointFacts)
	if err != nil {
		return s, err
	}
	return s, m.Lookup(uint32(id), &s)
}

func (a slotArray) Put(list []slot) error {
	ids, facts := make([]uint32, len(list)), make([]bpf.EndpointFacts, len(list))
	for i, s := range list {
		ids[i], facts[i] = uint32(s.id), s.facts
	}
	_, err := a.maps.PutBatch(bpf.MapEndpointFacts, ids, facts)
	return err
}

func (a slotArray) Dump() (map[uint16]bpf.EndpointFacts, error) {
	m, err := a.maps.Get(bpf.MapEndpointFacts)
	if err != nil {
		return nil, err
	}
	used := make(map[uint16]bpf.EndpointFacts)
	ids, facts := make([]uint32, m.MaxEntries()), make([]bpf.EndpointFacts, m.MaxEntries())
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, ids, facts, nil) // one call is enough: the array is small
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read map %s: %w", bpf.MapEndpointFacts, err)
	}
	for i := range n {
		if facts[i].Ifindex != 0 {
			used[uint16(ids[i])] = facts[i]
		}
	}
	return used, nil
}
