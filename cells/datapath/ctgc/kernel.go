package ctgc

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// slice is the number of entries that are read, and held in memory, at a time.
const slice = 1024

// kernel is the access of this cell to the kernel.
type kernel interface {
	// Now returns the clock of the programs, in ticks.
	Now() (uint32, error)
	// Read starts to read a map, and returns the capacity of the map in entries.
	Read(m ctmap.Map) (reader, uint32, error)
	// Delete deletes an entry if dead still returns true for it, and reports whether it did.
	Delete(m ctmap.Map, key *ctmap.Key, dead func(*bpf.CtEntry) bool) (bool, error)
	// Counts returns the number of flows of each endpoint, as counted by the programs.
	Counts() ([]uint32, error)
	SetCount(id uint16, flows uint32) error
	// Signals opens the ring buffer in which programs request a pass.
	Signals() (signals, error)
}

// reader reads a map once.
type reader interface {
	// Next returns the next entries, valid until the next call, and whether they are the last.
	Next() (flows []ctmap.Flow, last bool, err error)
}

// signals reads the ring buffer, which has only this reader.
type signals interface {
	// Read waits for the next signal until a deadline and then returns [os.ErrDeadlineExceeded]. After Close it returns [os.ErrClosed].
	Read(deadline time.Time) (bpf.CtSignal, error)
	Close() error
}

// pinned is the real kernel.
type pinned struct{ maps pinnedmaps.Copies }

func newKernel(m pinnedmaps.Copies) kernel { return pinned{m} }

// Now implements kernel.
func (pinned) Now() (uint32, error) { return bpf.CtNow() }

// Read implements kernel.
func (p pinned) Read(m ctmap.Map) (reader, uint32, error) {
	from, err := p.maps.Get(m.Name)
	if err != nil {
		return nil, 0, err
	}
	return ctmap.NewReader(m, from, slice), from.MaxEntries(), nil
}

// Delete implements kernel.
func (p pinned) Delete(m ctmap.Map, key *ctmap.Key, dead func(*bpf.CtEntry) bool) (bool, error) {
	return deleteIf(p, m.Name, key.Value(), dead)
}

// deleteIf deletes an entry for which dead returns true, and reports whether it did. While hooks are replaced after a map was resized, it also deletes the
// entry of the copy if that entry is dead: otherwise the entry would be restored when the copy is removed.
func deleteIf[V any](p pinned, name string, key any, dead func(*V) bool) (deleted bool, err error) {
	isCopy := false
	err = p.maps.Each(name, func(m *ebpf.Map) error {
		gone, err := deleteFrom(m, key, dead)
		if !isCopy {
			deleted, isCopy = gone, true
		}
		if err != nil {
			return fmt.Errorf("delete an entry of map %s: %w", name, err)
		}
		return nil
	})
	return deleted, err
}

// deleteFrom deletes an entry of one map if it is dead. Between look-up and deletion a packet may renew the flow, or create another flow with the same key, so
// the deleted entry is evaluated again and restored if it is alive.
func deleteFrom[V any](m *ebpf.Map, key any, dead func(*V) bool) (bool, error) {
	var entry V
	if err := m.Lookup(key, &entry); err != nil {
		return false, unlessAbsent(err)
	}
	if !dead(&entry) {
		return false, nil
	}
	if err := m.LookupAndDelete(key, &entry); err != nil {
		return false, unlessAbsent(err)
	}
	if dead(&entry) {
		return true, nil
	}
	if err := m.Update(key, &entry, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return true, err
	}
	return false, nil
}

// unlessAbsent returns nil if the error means that the entry does not exist.
func unlessAbsent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Counts implements kernel.
func (p pinned) Counts() ([]uint32, error) { return readCounts[uint32](p, bpf.MapCtFlows) }

// readCounts reads an array that is indexed by endpoint.
func readCounts[T any](p pinned, name string) ([]T, error) {
	m, err := p.maps.Get(name)
	if err != nil {
		return nil, err
	}
	ids, counts := make([]uint32, m.MaxEntries()), make([]T, m.MaxEntries())
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, ids, counts, nil) // one call: the array is small, and in order
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	return counts[:n], nil
}

// SetCount implements kernel.
func (p pinned) SetCount(id uint16, flows uint32) error {
	return p.maps.Put(bpf.MapCtFlows, uint32(id), flows)
}

// Signals implements kernel.
func (p pinned) Signals() (signals, error) {
	m, err := p.maps.Get(bpf.MapCtSignals)
	if err != nil {
		return nil, err
	}
	ring, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, fmt.Errorf("open ring buffer %s: %w", bpf.MapCtSignals, err)
	}
	return &ringSignals{ring: ring}, nil
}

// ringSignals implements signals.
type ringSignals struct {
	ring   *ringbuf.Reader
	record ringbuf.Record
}

// Read implements signals.
func (r *ringSignals) Read(deadline time.Time) (s bpf.CtSignal, err error) {
	r.ring.SetDeadline(deadline)
	if err = r.ring.ReadInto(&r.record); errors.Is(err, ringbuf.ErrClosed) {
		return s, os.ErrClosed
	}
	if err != nil {
		return s, err
	}
	return signalOf(r.record.RawSample)
}

// Close implements signals.
func (r *ringSignals) Close() error { return r.ring.Close() }
