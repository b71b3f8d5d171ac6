package maps

import (
	"errors"
	"fmt"
	"hash/maphash"

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

// seen holds keys of entries, by their hashes.
type seen map[uint64]struct{}

// seed is of all hashes of this process.
var seed = maphash.MakeSeed()

// fillMissing copies the entries of a hash table that the other one, which programs use, does not have and no earlier call has seen: programs may have deleted
// those there since. Other maps have no entries that programs make. It goes on when the other one is full, and returns an error then.
func fillMissing(to, from *ebpf.Map, before seen) error {
	if from.Type() != ebpf.Hash && from.Type() != ebpf.LRUHash {
		return nil
	}
	var key, value []byte
	lost, all := 0, from.Iterate()
	var why error
	for all.Next(&key, &value) {
		hash := maphash.Bytes(seed, key)
		if _, found := before[hash]; found {
			continue
		}
		before[hash] = struct{}{}
		if err := to.Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			lost, why = lost+1, err
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read the entries that were made since the map was copied: %w", err)
	}
	if lost > 0 {
		return fmt.Errorf("%d entries that were made since the map was copied do not fit into the map of %d entries: %w", lost, to.MaxEntries(), why)
	}
	return nil
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
