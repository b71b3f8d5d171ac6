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

func newNatKernel(m bpfmaps.Maps) natKernel { return pinned{m} }

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

// DeleteNat implements natKernel. Between look-up and deletion a packet may prolong the flow or begin another with the same
// ends; programs make the entry anew with the next one.
func (p pinned) DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error) {
	f, found, err := p.LookupNat(key)
	if err != nil || !found || !dead(&f) {
		return false, err
	}
	return p.delete(natmap.Of(key.IPv6).Name, key.Value())
}

// delete tells whether there was something to delete.
func (p pinned) delete(name string, key any) (bool, error) {
	err := p.maps.Delete(name, key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete an entry of map %s: %w", name, err)
	}
	return true, nil
}

// NatCounts implements natKernel.
func (p pinned) NatCounts() ([]bpf.NatCount, error) {
	return readCounts[bpf.NatCount](p, bpf.MapNatFlows)
}

// SetNatCount implements natKernel.
func (p pinned) SetNatCount(id uint16, flows bpf.NatCount) error {
	return p.maps.Put(bpf.MapNatFlows, uint32(id), flows)
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

// DeleteAffinity implements natKernel. Between look-up and deletion a program may renew the entry, because the client has met another
// backend; the deleted entry is therefore evaluated again, and put back if it is alive. The copy that programs of another generation
// read stays: programs ignore a backend that the service does not have.
func (p pinned) DeleteAffinity(key bpf.AffinityKey, dead func(bpf.AffinityEntry) bool) (bool, error) {
	from, err := p.maps.Get(bpf.MapAffinity)
	if err != nil {
		return false, err
	}
	var entry bpf.AffinityEntry
	if err := from.Lookup(&key, &entry); err != nil {
		return false, affinityError(err)
	}
	if !dead(entry) {
		return false, nil
	}
	if err := from.LookupAndDelete(&key, &entry); err != nil {
		return false, affinityError(err)
	}
	if dead(entry) {
		return true, nil
	}
	if err := from.Update(&key, &entry, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return true, affinityError(err)
	}
	return false, nil
}

// affinityError is nil when the entry is not there.
func affinityError(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return fmt.Errorf("delete an entry of map %s: %w", bpf.MapAffinity, err)
}
