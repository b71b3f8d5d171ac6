package maps

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// twin is the same map in another form, which programs of another generation may read. Every write goes there as well.
type twin struct {
	m    *ebpf.Map
	pin  string
	back convert // from the present layout into this one
	// resized is true when only the number of entries differs. Then nobody needs it once every hook runs this generation.
	// A twin of another layout is kept, so that the release before finds its map as it must be.
	resized  bool
	unpinned bool // until the present map is filled: the release before would take it for filled
	warned   bool // that entries were not copied
	seen     seen // entries that both maps have had
}

// put repeats a write.
func (t *twin) put(key, value any) error {
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
		return nil // the smaller map cannot have it, and whoever reads that knows that it may be missing
	}
	return t.write(k, v)
}

// write writes an entry of the twin's layout.
func (t *twin) write(key, value any) error {
	err := t.m.Put(key, value)
	if full := errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC); err == nil || full && !t.resized {
		return nil // the release before has a smaller map, and is without the entry as well
	}
	return fmt.Errorf("write to %s: %w", t.pin, err)
}

// remove repeats a deletion; what never was there is no error.
func (t *twin) remove(key any, size uint32) error {
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
