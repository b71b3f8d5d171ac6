package maps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/bpffs"
)

// kernel is what this cell asks of the machine.
type kernel interface {
	// Prepare makes sure that root is a BPF file system and that dir below it exists.
	Prepare(root, dir string) error
	// Open takes over the map that is pinned at path, or makes and pins one. A pin that does not fit the spec gives
	// [ebpf.ErrMapIncompatible] and is left as it is.
	Open(spec *ebpf.MapSpec, path string) (m *ebpf.Map, reused bool, err error)
	// Memory is what the kernel charges for a map, in bytes.
	Memory(m *ebpf.Map) uint64
	// Dump prints all entries of a map.
	Dump(m *ebpf.Map, spec *ebpf.MapSpec) ([]dumped, error)
	// Close gives the map back; the pin stays.
	Close(m *ebpf.Map) error
}

// realKernel is the machine.
type realKernel struct{}

func newKernel() kernel { return realKernel{} }

func (realKernel) Prepare(root, dir string) error {
	if _, err := bpffs.Ensure(root); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pinned maps: %w", err)
	}
	return nil
}

func (realKernel) Open(spec *ebpf.MapSpec, path string) (*ebpf.Map, bool, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
		m, err := create(spec, path)
		return m, false, err
	case err != nil:
		return nil, false, fmt.Errorf("open pinned map %s: %w", path, err)
	}
	if err := spec.Compatible(m); err != nil {
		_ = m.Close()
		return nil, false, err
	}
	return m, true, nil
}

// create makes a map and pins it. The spec's own pinning is not used: it would take over what is pinned by its name.
func create(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	spec = spec.Copy()
	spec.Pinning = ebpf.PinNone
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", spec.Name, err)
	}
	if err := m.Pin(path); err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("pin map %s at %s: %w", spec.Name, filepath.Dir(path), err)
	}
	return m, nil
}

func (realKernel) Memory(m *ebpf.Map) uint64 {
	info, err := m.Info()
	if err != nil {
		return 0
	}
	bytes, _ := info.Memlock()
	return bytes
}

func (realKernel) Close(m *ebpf.Map) error { return m.Close() }
