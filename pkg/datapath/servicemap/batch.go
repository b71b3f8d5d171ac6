package servicemap

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// batch is the number of entries per system call: enough to make the cost of the call negligible, and few enough for its buffers.
const batch = 4096

// Size implements Table.
func (p pinned[K, V]) Size() (uint32, error) {
	m, err := p.get()
	if err != nil {
		return 0, err
	}
	return m.MaxEntries(), nil
}

// Dump implements Table.
func (p pinned[K, V]) Dump() (keys []K, values []V, err error) { return p.Head(math.MaxInt) }

// Head implements Table.
func (p pinned[K, V]) Head(most int) (keys []K, values []V, err error) {
	m, err := p.get()
	if err != nil {
		return nil, nil, err
	}
	var cursor ebpf.MapBatchCursor
	for len(keys) < most {
		at, next := len(keys), min(batch, most-len(keys))
		keys, values = append(keys, make([]K, next)...), append(values, make([]V, next)...)
		n, err := m.BatchLookup(&cursor, keys[at:], values[at:], nil)
		keys, values = keys[:at+n], values[:at+n]
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return keys, values, nil
		case err != nil:
			return nil, nil, fmt.Errorf("read the map %s: %w", p.name, err)
		}
	}
	return keys, values, nil
}

// Put implements Table.
func (p pinned[K, V]) Put(keys []K, values []V) Failures {
	return each(len(keys), func(from, to int) (int, error) {
		n, err := p.maps.PutBatch(p.name, keys[from:to], values[from:to])
		if err != nil {
			err = fmt.Errorf("write to the map %s: %w", p.name, err)
		}
		return n, err
	})
}

// Delete implements Table.
func (p pinned[K, V]) Delete(keys []K) Failures {
	return each(len(keys), func(from, to int) (int, error) {
		n, err := p.maps.DeleteBatch(p.name, keys[from:to])
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return n + 1, nil
		}
		if err != nil {
			err = fmt.Errorf("delete from the map %s: %w", p.name, err)
		}
		return n, err
	})
}

// each processes n entries in batches. do returns the number of processed entries. An error applies to the next entry, which each skips.
func each(n int, do func(from, to int) (int, error)) (failed Failures) {
	for at := 0; at < n; {
		done, err := do(at, min(at+batch, n))
		at += done
		if err == nil {
			continue
		}
		if failed == nil {
			failed = Failures{}
		}
		failed[min(at, n-1)] = err
		at++
	}
	return failed
}

// Full reports whether an error means that a map is full. Hash tables and tries return different errors.
func Full(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }
