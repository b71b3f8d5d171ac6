package ctgc

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// natKernel is the access of this cell to translated flows and session affinities in the kernel.
type natKernel interface {
	// ReadNat starts to read a map, and returns the capacity of the map in entries. The caller must close the reader.
	ReadNat(m natmap.Map) (natReader, uint32, error)
	// LookupNat reads one entry; found is false if it does not exist.
	LookupNat(key *natmap.Key) (f natmap.Flow, found bool, err error)
	// DeleteNat deletes an entry if dead still returns true for it, and reports whether it did.
	DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error)
	// NatCounts returns the number of translated flows of each endpoint, as counted by the programs; index 0 has the flows without an endpoint.
	NatCounts() ([]bpf.NatCount, error)
	SetNatCount(id uint16, flows bpf.NatCount) error
	// NatTotals returns the numbers of translated flows beyond guarantees ([bpf.NatBeyond]) and of the node ([bpf.NatOfNode]), as counted by the programs.
	NatTotals() ([]bpf.NatCount, error)
	SetNatTotal(slot uint32, flows bpf.NatCount) error
	// Affinities returns all affinities and the capacity of their map in entries.
	Affinities() ([]affinity, uint32, error)
	// DeleteAffinity deletes an affinity if dead still returns true for it, and reports whether it did.
	DeleteAffinity(key bpf.AffinityKey, dead func(bpf.AffinityEntry) bool) (bool, error)
}

// natReader reads a map once.
type natReader interface {
	// Next returns the next entries, valid until the next call, and whether they are the last.
	Next() (flows []natmap.Flow, last bool, err error)
	// Close ends the use of these entries.
	Close()
}

// affinity is a client and its backend.
type affinity struct {
	Key   bpf.AffinityKey
	Entry bpf.AffinityEntry
}

func newNatKernel(m pinnedmaps.Copies) natKernel { return pinned{m} }

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

// DeleteAffinity implements natKernel. A program may renew the entry concurrently, because the client has been assigned another backend.
func (p pinned) DeleteAffinity(key bpf.AffinityKey, dead func(bpf.AffinityEntry) bool) (bool, error) {
	return deleteIf(p, bpf.MapAffinity, &key, func(e *bpf.AffinityEntry) bool { return dead(*e) })
}
