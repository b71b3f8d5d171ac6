package pinnedmaps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// WithCause adds the cause that the library hides. When the kernel rejects a map, the library probes features by creating maps; without memory these fail too,
// and the library reports for the rest of the process's life that the kernel lacks the feature. If not even the simplest map can be created, the error of
// that map is the cause.
func WithCause(err error) error {
	if !errors.Is(err, ebpf.ErrNotSupported) {
		return err
	}
	simplest, cause := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if cause != nil {
		return fmt.Errorf("%w; the probe creates maps, and the kernel rejects even the simplest one: %w", err, cause)
	}
	_ = simplest.Close()
	return err
}
