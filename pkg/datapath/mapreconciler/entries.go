package mapreconciler

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// Entries gives access to the entries of a map in the agent's types.
type Entries[K comparable, V any] interface {
	Put(key K, v V) error
	// Delete removes an entry; a missing entry is success.
	Delete(key K) error
	Dump() (map[K]V, error)
}

// Hash is a pinned map, in which programs use the types KK for keys and VV for values.
type Hash[K comparable, KK any, V, VV any] struct {
	Maps    pinnedmaps.Maps
	Name    string
	Key     func(K) KK
	KeyOf   func(KK) (K, bool) // false for keys without a possible row
	Value   func(V) VV
	ValueOf func(VV) V
}

// Same converts keys or values whose type programs share.
func Same[T any](t T) T { return t }

// batch is the number of entries that one system call reads.
const batch = 1024

// Put implements Entries.
func (h Hash[K, KK, V, VV]) Put(key K, v V) error {
	return h.Maps.Put(h.Name, h.Key(key), h.Value(v))
}

// Delete implements Entries.
func (h Hash[K, KK, V, VV]) Delete(key K) error {
	if err := h.Maps.Delete(h.Name, h.Key(key)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// Dump implements Entries. It omits keys that KeyOf rejects.
func (h Hash[K, KK, V, VV]) Dump() (map[K]V, error) {
	m, err := h.Maps.Get(h.Name)
	if err != nil {
		return nil, err
	}
	out := make(map[K]V)
	keys, values := make([]KK, batch), make([]VV, batch)
	var cursor ebpf.MapBatchCursor
	for last := false; !last; {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if last = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !last {
			return nil, fmt.Errorf("read map %s: %w", h.Name, err)
		}
		for i := range n {
			if k, ok := h.KeyOf(keys[i]); ok {
				out[k] = h.ValueOf(values[i])
			}
		}
	}
	return out, nil
}
