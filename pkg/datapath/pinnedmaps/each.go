package pinnedmaps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// batch is the number of entries that one system call reads.
const batch = 4096

// Each calls do for every entry of a map.
func Each[K, V any](all Maps, name string, do func(K, V)) error {
	m, err := all.Get(name)
	if err != nil {
		return err
	}
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read map %s: %w", name, err)
		}
		for i := range n {
			do(keys[i], values[i])
		}
		if err != nil {
			return nil // the last batch
		}
	}
}
