package natmap

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// Reader reads a map once, in slices. It may or may not return entries that are added or removed meanwhile; it returns every other entry once.
type Reader struct {
	of     Map
	from   *ebpf.Map
	cursor ebpf.MapBatchCursor
	*buffers
	size int
}

// buffers hold one slice.
type buffers struct {
	keys4   []bpf.NatKey4
	keys6   []bpf.NatKey6
	values4 []bpf.NatEntry4
	values6 []bpf.NatEntry6
	flows   []Flow
}

// pool4 and pool6 hold buffers of closed readers: loops that read the maps again and again would otherwise cause a quarter of the garbage of an agent.
var pool4, pool6 = newPool(false), newPool(true)

func newPool(ipv6 bool) *sync.Pool {
	return &sync.Pool{New: func() any { return newBuffers(ipv6, leastSlice) }}
}

func newBuffers(ipv6 bool, size int) *buffers {
	b := &buffers{flows: make([]Flow, 0, size)}
	if ipv6 {
		b.keys6, b.values6 = make([]bpf.NatKey6, size), make([]bpf.NatEntry6, size)
	} else {
		b.keys4, b.values4 = make([]bpf.NatKey4, size), make([]bpf.NatEntry4, size)
	}
	return b
}

func (m Map) pool() *sync.Pool {
	if m.IPv6 {
		return pool6
	}
	return pool4
}

// leastSlice is larger than the number of entries in one bucket of the kernel's hash table.
const leastSlice = 256

// NewReader returns a reader with batches of at most size entries; the minimum is 256, the size of the first batch, because most maps have no more entries. The
// caller must close the reader.
func NewReader(of Map, from *ebpf.Map, size int) *Reader {
	r := &Reader{of: of, from: from, buffers: of.pool().Get().(*buffers), size: size}
	r.flows = r.flows[:0]
	return r
}

// Close ends the use of the last slice.
func (r *Reader) Close() {
	r.of.pool().Put(r.buffers)
	r.buffers = nil
}

// Next reads the next slice, which is valid until the next call, and reports whether it was the last.
func (r *Reader) Next() (flows []Flow, last bool, err error) {
	if len(r.flows) > 0 && cap(r.flows) < r.size {
		r.of.pool().Put(r.buffers)
		r.buffers = newBuffers(r.of.IPv6, r.size)
	}
	n := min(cap(r.flows), r.size)
	if r.of.IPv6 {
		n, err = r.from.BatchLookup(&r.cursor, r.keys6[:n], r.values6[:n], nil)
	} else {
		n, err = r.from.BatchLookup(&r.cursor, r.keys4[:n], r.values4[:n], nil)
	}
	if last = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !last {
		return nil, false, fmt.Errorf("read map %s: %w", r.of.Name, err)
	}
	r.flows = r.flows[:n]
	for i := range n {
		if r.of.IPv6 {
			r.flows[i] = NewFlow6(&r.keys6[i], &r.values6[i])
		} else {
			r.flows[i] = NewFlow4(&r.keys4[i], &r.values4[i])
		}
	}
	return r.flows, last, nil
}

// Lookup reads one entry; found is false when the map has no such entry.
func Lookup(from *ebpf.Map, key *Key) (f Flow, found bool, err error) {
	if key.IPv6 {
		var e bpf.NatEntry6
		if err = from.Lookup(&key.V6, &e); err == nil {
			return NewFlow6(&key.V6, &e), true, nil
		}
	} else {
		var e bpf.NatEntry4
		if err = from.Lookup(&key.V4, &e); err == nil {
			return NewFlow4(&key.V4, &e), true, nil
		}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return f, false, nil
	}
	return f, false, fmt.Errorf("look up a translated flow: %w", err)
}
