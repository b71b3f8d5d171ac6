package ctgc

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/natmap"
)

// natKernel is what this cell asks of the kernel about translated flows, and about clients that keep their backend.
type natKernel interface {
	// ReadNat begins to read a map, and says how many entries it has room for.
	ReadNat(m natmap.Map) (natReader, uint32, error)
	// LookupNat reads one entry; found is false when it is not there.
	LookupNat(key *natmap.Key) (f natmap.Flow, found bool, err error)
	// DeleteNat deletes an entry that still is as dead wants it, and tells whether it did.
	DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error)
	// NatCounts are the translated flows of each endpoint, as the programs count them; those of none stand first.
	NatCounts() ([]bpf.NatCount, error)
	SetNatCount(id uint16, flows bpf.NatCount) error
	// NatTotals are the translated flows beyond guarantees ([bpf.NatBeyond]) and those of the node ([bpf.NatOfNode]), as the programs count them.
	NatTotals() ([]bpf.NatCount, error)
	SetNatTotal(slot uint32, flows bpf.NatCount) error
	// Affinities are all of them, and how many there is room for.
	Affinities() ([]affinity, uint32, error)
	// DeleteAffinity deletes one that still is as dead wants it, and tells whether it did.
	DeleteAffinity(key bpf.AffinityKey, dead func(bpf.AffinityEntry) bool) (bool, error)
}

// natReader reads a map once.
type natReader interface {
	// Next returns the next entries, valid until the next call, and whether they are the last.
	Next() (flows []natmap.Flow, last bool, err error)
}

// affinity is a client and the backend that it keeps.
type affinity struct {
	Key   bpf.AffinityKey
	Entry bpf.AffinityEntry
}

func newNatKernel(m bpfmaps.Copies) natKernel { return pinned{m} }

// ReadNat implements natKernel.
func (p pinned) ReadNat(m natmap.Map) (natReader, uint32, error) {
	from, err := p.maps.Get(m.Name)
	if err != nil {
		return nil, 0, err
	}
	return natmap.NewReader(m, from, slice), from.MaxEntries(), nil
}

// LookupNat implements natKernel.
func (p pinned) LookupNat(key *natmap.Key) (natmap.Flow, bool, error) {
	from, err := p.maps.Get(natmap.Of(key.IPv6).Name)
	if err != nil {
		return natmap.Flow{}, false, err
	}
	return natmap.Lookup(from, key)
}

// DeleteNat implements natKernel.
func (p pinned) DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error) {
	name := natmap.Of(key.IPv6).Name
	if key.IPv6 {
		return deleteIf(p, name, &key.V6, func(e *bpf.NatEntry6) bool { f := natmap.NewFlow6(&key.V6, e); return dead(&f) })
	}
	return deleteIf(p, name, &key.V4, func(e *bpf.NatEntry4) bool { f := natmap.NewFlow4(&key.V4, e); return dead(&f) })
}

// NatCounts implements natKernel.
func (p pinned) NatCounts() ([]bpf.NatCount, error) {
	return readCounts[bpf.NatCount](p, bpf.MapNatFlows)
}

// SetNatCount implements natKernel.
func (p pinned) SetNatCount(id uint16, flows bpf.NatCount) error {
	return p.maps.Put(bpf.MapNatFlows, uint32(id), flows)
}

// NatTotals implements natKernel.
func (p pinned) NatTotals() ([]bpf.NatCount, error) {
	return readCounts[bpf.NatCount](p, bpf.MapNatTotals)
}

// SetNatTotal implements natKernel.
func (p pinned) SetNatTotal(slot uint32, flows bpf.NatCount) error {
	return p.maps.Put(bpf.MapNatTotals, slot, flows)
}

// Affinities implements natKernel.
func (p pinned) Affinities() ([]affinity, uint32, error) {
	from, err := p.maps.Get(bpf.MapAffinity)
	if err != nil {
		return nil, 0, err
	}
	var all []affinity
	var cursor ebpf.MapBatchCursor
	keys, values := make([]bpf.AffinityKey, slice), make([]bpf.AffinityEntry, slice)
	for {
		n, err := from.BatchLookup(&cursor, keys, values, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return nil, 0, fmt.Errorf("read map %s: %w", bpf.MapAffinity, err)
		}
		for i := range n {
			all = append(all, affinity{keys[i], values[i]})
		}
		if last {
			return all, from.MaxEntries(), nil
		}
	}
}

// DeleteAffinity implements natKernel. A program may renew the entry meanwhile, because the client has met another backend.
func (p pinned) DeleteAffinity(key bpf.AffinityKey, dead func(bpf.AffinityEntry) bool) (bool, error) {
	return deleteIf(p, bpf.MapAffinity, &key, func(e *bpf.AffinityEntry) bool { return dead(*e) })
}
