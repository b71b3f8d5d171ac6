package maps

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
)

// convert converts an entry of one layout to another layout; a nil convert leaves entries unchanged.
type convert = bpf.Convert

// fill copies the entries of from, converted, to a map that no program reads yet. It omits free elements of arrays. A ring buffer has no entries, and entries
// of socket storage stay with the sockets, which cannot be listed.
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

// keyHashes is a set of keys, stored as hashes.
type keyHashes map[uint64]struct{}

// seed is the seed of all key hashes of this process.
var seed = maphash.MakeSeed()

// copyBatch is the number of entries that one system call reads. It exceeds the number of entries in any bucket of a hash table.
const copyBatch = 4096

// exchange copies entries between two hash tables that programs use: each table gets the entries that only the other one has and that no previous call has
// seen. An entry that a previous call has seen is not copied again, because a program may have deleted its copy since. Programs create entries in hash tables
// only, so exchange ignores other map types. When a table is full, exchange continues and returns an error at the end.
func exchange(a, b *ebpf.Map, before keyHashes) error {
	if a.Type() != ebpf.Hash && a.Type() != ebpf.LRUHash {
		return nil
	}
	return errors.Join(fillMissing(a, b, before), fillMissing(b, a, before))
}

// fillMissing copies the unseen entries of from to to. A batch consists of whole buckets. So unlike an iteration from key to key, it neither restarts nor ends
// early when programs delete entries concurrently.
func fillMissing(to, from *ebpf.Map, before keyHashes) error {
	keys, values := rawSlice(from.KeySize()), rawSlice(from.ValueSize())
	lost := 0
	var cursor ebpf.MapBatchCursor
	var why error
	for last := false; !last; {
		n, err := from.BatchLookup(&cursor, keys.Interface(), values.Interface(), nil)
		if last = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !last {
			return fmt.Errorf("read the entries that were created after the copy of the map: %w", err)
		}
		for i := range n {
			key := keys.Index(i).Bytes()
			hash := maphash.Bytes(seed, key)
			if _, found := before[hash]; found {
				continue
			}
			before[hash] = struct{}{}
			if err := to.Update(key, values.Index(i).Bytes(), ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				lost, why = lost+1, err
			}
		}
	}
	if lost > 0 {
		return fmt.Errorf("%d entries that were created after the copy of the map do not fit into the map of %d entries: %w", lost, to.MaxEntries(), why)
	}
	return nil
}

// migrate copies the entries of a hash table to another one while programs write to both. Programs write an entry to both tables, and delete it in from first.
// So an entry that exists in to is newer and stays, and a copy is deleted again if from no longer has the entry. When to is full ([unix.E2BIG]), migrate
// continues and returns the error at the end. After any other error the entries must be copied again.
func migrate(to, from *ebpf.Map) error {
	lost := 0
	var full, failed error
	err := eachKey(from, func(key []byte) {
		if err := migrateEntry(to, from, key); errors.Is(err, unix.E2BIG) {
			lost, full = lost+1, err
		} else if err != nil {
			failed = err
		}
	})
	if err = errors.Join(err, failed); err == nil && lost > 0 {
		err = fmt.Errorf("%d entries do not fit into the map of %d entries: %w", lost, to.MaxEntries(), full)
	}
	return err
}

// table is the part of [ebpf.Map] that [migrateEntry] uses.
type table interface {
	LookupBytes(key any) ([]byte, error)
	Update(key, value any, how ebpf.MapUpdateFlags) error
	Delete(key any) error
}

// migrateEntry copies one entry. It reads the value again, because a batch is read some milliseconds before its last entry is copied. It returns when from has
// the copied value: until then programs may have changed, deleted or replaced the entry without finding the copy.
func migrateEntry(to, from table, key []byte) error {
	value, err := from.LookupBytes(key)
	if err != nil || value == nil {
		return err
	}
	if err := to.Update(key, value, ebpf.UpdateNoExist); err != nil {
		return unlessExists(err)
	}
	for {
		now, err := from.LookupBytes(key)
		switch {
		case err != nil || bytes.Equal(now, value):
			return err
		case now == nil: // this may delete a value that a program is storing in both tables, so from is read again
			err = unlessAbsent(to.Delete(key))
		case value == nil:
			if err = to.Update(key, now, ebpf.UpdateNoExist); errors.Is(err, ebpf.ErrKeyExist) {
				return nil
			}
		default:
			err = to.Update(key, now, ebpf.UpdateAny)
		}
		if err != nil {
			return err
		}
		value = now
	}
}

func unlessAbsent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

func unlessExists(err error) error {
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

// eachKey calls do for the key of every entry of a hash table. It reads batches as [fillMissing] does.
func eachKey(m *ebpf.Map, do func(key []byte)) error {
	keys, values := rawSlice(m.KeySize()), rawSlice(m.ValueSize())
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys.Interface(), values.Interface(), nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read the keys of a map: %w", err)
		}
		for i := range n {
			do(keys.Index(i).Bytes())
		}
		if err != nil {
			return nil
		}
	}
}

// rawSlice returns a slice of copyBatch arrays of size bytes, the form that the library requires for a batch.
func rawSlice(size uint32) reflect.Value {
	return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())), copyBatch, copyBatch)
}

// fillPerCPU copies a per-CPU map without conversion: such maps hold only counters, whose layouts do not change.
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
