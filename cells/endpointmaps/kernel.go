package endpointmaps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
)

// kernel is the three maps.
type kernel struct {
	facts     slots
	links     entries[uint32, uint16]
	addresses entries[netip.Addr, bpf.EndpointRef]
}

// slots is the array of facts; an id is always there.
type slots interface {
	Get(id uint16) (bpf.EndpointFacts, error)
	// Put writes slots, in their order and with as little time between them as the kernel allows.
	Put(list []slot) error
	// Dump reads the slots that are in use.
	Dump() (map[uint16]bpf.EndpointFacts, error)
}

// entries is a hash map.
type entries[K comparable, V any] interface {
	Put(key K, v V) error
	// Delete removes an entry; one that is gone is success.
	Delete(key K) error
	Dump() (map[K]V, error)
}

// slot is the facts of one endpoint at their place.
type slot struct {
	id    uint16
	facts bpf.EndpointFacts
}

func newKernel(m bpfmaps.Batches) kernel {
	return kernel{
		facts: slotArray{m},
		links: hash[uint32, uint32, uint16, uint32]{
			maps: m, name: bpf.MapLinks,
			key: func(k uint32) uint32 { return k }, keyOf: func(k uint32) (uint32, bool) { return k, true },
			value: func(v uint16) uint32 { return uint32(v) }, valueOf: func(v uint32) uint16 { return uint16(v) },
		},
		addresses: hash[netip.Addr, bpf.AddrKey, bpf.EndpointRef, bpf.EndpointRef]{
			maps: m, name: bpf.MapEndpoints,
			key:   bpf.NewAddrKey,
			keyOf: func(k bpf.AddrKey) (netip.Addr, bool) { a := bpf.AddrOf(k); return a, a.IsValid() },
			value: func(v bpf.EndpointRef) bpf.EndpointRef { return v }, valueOf: func(v bpf.EndpointRef) bpf.EndpointRef { return v },
		},
	}
}

// slotArray is the map endpoint_facts.
type slotArray struct{ maps bpfmaps.Batches }

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
	n, err := m.BatchLookup(&cursor, ids, facts, nil) // one call: the array is small
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

// batch is how many entries of a hash map one system call reads.
const batch = 1024

// hash is one hash map. The programs' forms of key and value are KK and VV.
type hash[K comparable, KK any, V, VV any] struct {
	maps    bpfmaps.Maps
	name    string
	key     func(K) KK
	keyOf   func(KK) (K, bool) // false for keys that no row makes
	value   func(V) VV
	valueOf func(VV) V
}

func (h hash[K, KK, V, VV]) Put(key K, v V) error {
	return h.maps.Put(h.name, h.key(key), h.value(v))
}

func (h hash[K, KK, V, VV]) Delete(key K) error {
	if err := h.maps.Delete(h.name, h.key(key)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (h hash[K, KK, V, VV]) Dump() (map[K]V, error) {
	m, err := h.maps.Get(h.name)
	if err != nil {
		return nil, err
	}
	out := make(map[K]V)
	keys, values := make([]KK, batch), make([]VV, batch)
	var cursor ebpf.MapBatchCursor
	for last := false; !last; {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if last = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !last {
			return nil, fmt.Errorf("read map %s: %w", h.name, err)
		}
		for i := range n {
			if k, ok := h.keyOf(keys[i]); ok {
				out[k] = h.valueOf(values[i])
			}
		}
	}
	return out, nil
}
