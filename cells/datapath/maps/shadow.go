package maps

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// shadowMap is a second copy of a map, of another layout or size, which programs of another generation may read. Every write is repeated in it.
type shadowMap struct {
	m    *ebpf.Map
	pin  string
	back convert // converts from the present layout to this one
	// resized is true if only the number of entries differs. Such a shadow map is removed when every hook runs this generation. A shadow map of another layout is kept, so
	// that the previous release finds a current map.
	resized  bool
	unpinned bool      // until the present map is filled: the previous release would treat a pinned map as filled
	warned   bool      // a failed copy of entries was logged
	common   keyHashes // entries that have been in both maps
}

// put converts an entry and writes it to the shadow map.
func (t *shadowMap) put(key, value any) error {
	k, err := binary.Append(nil, binary.NativeEndian, key)
	if err != nil {
		return fmt.Errorf("write to %s: %w", t.pin, err)
	}
	v, err := binary.Append(nil, binary.NativeEndian, value)
	if err != nil {
		return fmt.Errorf("write to %s: %w", t.pin, err)
	}
	k, v, exists := apply(t.back, k, v)
	if !exists {
		return nil
	}
	if t.m.Type() == ebpf.Array && binary.NativeEndian.Uint32(k) >= t.m.MaxEntries() {
		return nil // the smaller map has no such element; its programs handle a missing one
	}
	return t.write(k, v)
}

// write writes an entry in the layout of the shadow map.
func (t *shadowMap) write(key, value any) error {
	err := t.m.Put(key, value)
	if full := errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC); err == nil || full && !t.resized {
		return nil // the previous release has a smaller map, and lacks the entry as well
	}
	return fmt.Errorf("write to %s: %w", t.pin, err)
}

// remove deletes an entry from the shadow map; a missing entry is no error.
func (t *shadowMap) remove(key any, size uint32) error {
	k, err := binary.Append(nil, binary.NativeEndian, key)
	if err != nil {
		return fmt.Errorf("delete from %s: %w", t.pin, err)
	}
	k, _, exists := apply(t.back, k, make([]byte, size))
	if !exists {
		return nil
	}
	if err := t.m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from %s: %w", t.pin, err)
	}
	return nil
}
