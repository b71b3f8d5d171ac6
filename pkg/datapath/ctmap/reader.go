package ctmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// Reader reads a map once, in slices. It may or may not return entries that are added or removed meanwhile; it returns every other entry once.
type Reader struct {
	of     Map
	from   *ebpf.Map
	cursor ebpf.MapBatchCursor
	keys4  []bpf.CtKey4
	keys6  []bpf.CtKey6
	values []bpf.CtEntry
	flows  []Flow
}

// NewReader reads at most size entries in each slice. size must be larger than the number of entries in one bucket of the kernel's hash table, so at
// least 256.
func NewReader(of Map, from *ebpf.Map, size int) *Reader {
	r := &Reader{of: of, from: from, values: make([]bpf.CtEntry, size), flows: make([]Flow, 0, size)}
	if of.IPv6 {
		r.keys6 = make([]bpf.CtKey6, size)
	} else {
		r.keys4 = make([]bpf.CtKey4, size)
	}
	return r
}

// Next reads the next slice, which is valid until the next call, and reports whether it was the last.
func (r *Reader) Next() (flows []Flow, last bool, err error) {
	n, err := r.from.BatchLookup(&r.cursor, r.keys(), r.values, nil)
	if last = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !last {
		return nil, false, fmt.Errorf("read map %s: %w", r.of.Name, err)
	}
	r.flows = r.flows[:n]
	for i := range n {
		f := &r.flows[i]
		*f = Flow{Key: Key{IPv6: r.of.IPv6}, Entry: r.values[i], Established: r.of.Established}
		if r.of.IPv6 {
			f.Key.V6 = r.keys6[i]
		} else {
			f.Key.V4 = r.keys4[i]
		}
	}
	return r.flows, last, nil
}

func (r *Reader) keys() any {
	if r.of.IPv6 {
		return r.keys6
	}
	return r.keys4
}
