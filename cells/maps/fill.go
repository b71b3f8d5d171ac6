package maps

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// convert turns an entry of one layout into one of another; nil leaves it as it is.
type convert = bpf.Convert

// fill copies the entries of a map, converted, into one that nobody reads yet. Free elements of arrays are left out. A ring
// buffer has no entries, and those of sockets stay with the sockets, which cannot be listed.
func fill(to, from *ebpf.Map, convert convert) error {
	switch from.Type() {
	case ebpf.RingBuf, ebpf.SkStorage:
		return nil
	case ebpf.PerCPUArray, ebpf.PerCPUHash:
		return fillPerCPU(to, from)
	}
	var key, value []byte
	all := from.Iterate()
	for all.Next(&key, &value) {
		if from.Type() == ebpf.Array && zero(value) {
			continue
		}
		k, v, exists := apply(convert, key, value)
		if !exists {
			continue
		}
		if err := to.Put(k, v); err != nil {
			return fmt.Errorf("copy an entry into a map of %d entries: %w", to.MaxEntries(), err)
		}
	}
	return all.Err()
}

// fillPerCPU knows only counters, whose layouts do not change.
func fillPerCPU(to, from *ebpf.Map) error {
	var (
		key    []byte
		values [][]byte
	)
	all := from.Iterate()
	for all.Next(&key, &values) {
		if err := to.Put(key, values); err != nil {
			return fmt.Errorf("copy counters into a map of %d entries: %w", to.MaxEntries(), err)
		}
	}
	return all.Err()
}

func apply(convert convert, key, value []byte) ([]byte, []byte, bool) {
	if convert == nil {
		return key, value, true
	}
	return convert(key, value)
}
