package ipcachemaps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// cursor is the position of [kernel.Some] in the two maps. The zero value is the start.
type cursor struct{ addresses, prefixes ebpf.MapBatchCursor }

// Some implements kernel.
func (k realKernel) Some(c *cursor, n int) (map[netip.Prefix]value, error) {
	out := make(map[netip.Prefix]value)
	_, err := some(k.maps, bpf.MapIpcache, &c.addresses, n, wholeAddress, out)
	if err == nil {
		_, err = some(k.maps, bpf.MapIpcachePrefixes, &c.prefixes, n, bpf.PrefixOf, out)
	}
	return out, err
}

// some adds the next n entries of one map to out, and reports whether they were the last. After the last it resets the cursor. It omits keys that are not valid
// prefixes, because no packet can match them.
func some[K any](
	all pinnedmaps.Maps, name string, c *ebpf.MapBatchCursor, n int, prefix func(K) netip.Prefix, out map[netip.Prefix]value,
) (end bool, err error) {
	m, err := all.Get(name)
	if err != nil {
		return false, err
	}
	keys, entries := make([]K, n), make([]bpf.IpcacheEntry, n)
	count, err := m.BatchLookup(c, keys, entries, nil)
	if err != nil {
		*c, end = ebpf.MapBatchCursor{}, true
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return true, fmt.Errorf("read map %s: %w", name, err)
		}
	}
	for i := range count {
		if p := prefix(keys[i]); p.IsValid() {
			out[p] = value{entries[i].Identity, entries[i].Node}
		}
	}
	return end, nil
}

// Get implements kernel.
func (k realKernel) Get(p netip.Prefix) (v value, found bool, err error) {
	name, key := place(p)
	m, err := k.maps.Get(name)
	if err != nil {
		return value{}, false, err
	}
	var entry bpf.IpcacheEntry
	switch err := m.Lookup(key, &entry); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return value{}, false, nil
	case err != nil:
		return value{}, false, err
	}
	return value{entry.Identity, entry.Node}, true, nil
}
