package maps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// kernel is the access of this cell to the kernel and its file systems.
type kernel interface {
	// Prepare ensures that root is a BPF file system and that the directory dir below it exists.
	Prepare(root, dir string) error
	// Open opens the map that is pinned at path, of any size. Errors: [os.ErrNotExist]; [errUnfit] if something else or a map of another layout is pinned
	// there. Any other error is a condition of the agent or the machine, such as a lack of file descriptors: then the pin must stay.
	Open(spec *ebpf.MapSpec, path string) (*ebpf.Map, error)
	// OpenAny is like Open, but returns nil if no map of that layout is pinned at path.
	OpenAny(spec *ebpf.MapSpec, path string) (*ebpf.Map, error)
	// Create creates a map without a pin.
	Create(spec *ebpf.MapSpec) (*ebpf.Map, error)
	// Fill copies the entries of a map; see [fill].
	Fill(to, from *ebpf.Map, convert convert) error
	// Exchange copies the entries that only one of two maps has; see [exchange].
	Exchange(a, b *ebpf.Map, before keyHashes) error
	// Migrate copies the entries of a table that programs use to another table; see [migrate].
	Migrate(to, from *ebpf.Map) error
	// Count returns the number of entries of a table.
	Count(m *ebpf.Map) (uint32, error)
	// ResizeState reads the value of the map resize_state. SetResizeState sets the value, and returns when no program runs that has read the previous value.
	ResizeState(m *ebpf.Map) (uint32, error)
	SetResizeState(m *ebpf.Map, value uint32) error
	// AwaitPackets returns when every program that runs at the time of the call has ended.
	AwaitPackets() error
	// Pin, Move and Unpin change the directory; programs keep the maps whose pins are removed. Unpin also removes a mark. A missing pin is no error for Unpin.
	Pin(m *ebpf.Map, path string) error
	Move(from, to string) error
	Unpin(path string) error
	// Mark creates a mark; an existing mark is no error.
	Mark(path string) error
	// Pins lists the names in the directory, marks included.
	Pins(dir string) ([]string, error)
	// Watch returns a function that waits until a file in the directory is removed.
	Watch(dir string) func(context.Context) error
	// Size returns the capacity of a map in entries, of a ring buffer in bytes.
	Size(m *ebpf.Map) uint32
	// Memory returns the memory that the kernel charges for a map, in bytes; 0 if it is unknown.
	Memory(m *ebpf.Map) uint64
	// Dump returns all entries of a map as text.
	Dump(m *ebpf.Map, spec *ebpf.MapSpec) ([]dumped, error)
	// Close closes the handle of a map; the pin stays.
	Close(m *ebpf.Map) error
}

// errUnfit means that the pinned object is not a map of the requested layout.
var errUnfit = errors.New("the pinned object is not this map")

// realKernel implements kernel with system calls.
type realKernel struct{}

func newKernel() kernel { return realKernel{} }

func (realKernel) Prepare(root, dir string) error {
	if _, err := bpffs.Ensure(root); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create directory for pinned maps: %w", err)
	}
	return nil
}

func (realKernel) Open(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	stat, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("open pinned map: %w", err)
	}
	if !stat.Mode().IsRegular() {
		return nil, fmt.Errorf("open pinned map %s: it is %s: %w", path, stat.Mode().Type(), errUnfit)
	}
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if isAgentsOwn(err) {
		return nil, fmt.Errorf("open pinned map %s: %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned map %s: %w: %w", path, errUnfit, err)
	}
	wanted := spec.Copy()
	wanted.MaxEntries = m.MaxEntries()
	if err := wanted.Compatible(m); err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("open pinned map %s: %w: %w", path, errUnfit, err)
	}
	return m, nil
}

// isAgentsOwn reports whether an error is a condition of the agent or the machine, not a property of the pin.
func isAgentsOwn(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR, unix.EAGAIN, unix.EPERM, unix.EROFS, unix.EIO},
		func(e error) bool { return errors.Is(err, e) })
}

// Create creates a map. It ignores the pinning of the spec, which would open a map that is pinned under the same name.
func (realKernel) Create(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	spec = spec.Copy()
	spec.Pinning = ebpf.PinNone
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create map %s of %d entries: %w", spec.Name, spec.MaxEntries, pinnedmaps.WithCause(err))
	}
	return m, nil
}

func (realKernel) Fill(to, from *ebpf.Map, convert convert) error { return fill(to, from, convert) }

func (realKernel) Exchange(a, b *ebpf.Map, before keyHashes) error { return exchange(a, b, before) }

func (r realKernel) OpenAny(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	m, err := r.Open(spec, path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errUnfit) {
		return nil, nil
	}
	return m, err
}

func (realKernel) Migrate(to, from *ebpf.Map) error { return migrate(to, from) }

func (realKernel) Count(m *ebpf.Map) (entries uint32, err error) {
	return entries, eachKey(m, func([]byte) { entries++ })
}

func (realKernel) ResizeState(m *ebpf.Map) (value uint32, err error) {
	if err = m.Lookup(uint32(0), &value); err != nil {
		return 0, fmt.Errorf("read the phase of the map resize: %w", err)
	}
	return value, nil
}

func (realKernel) SetResizeState(m *ebpf.Map, value uint32) error {
	err := m.Put(uint32(0), value)
	if err == nil {
		err = pinnedmaps.AwaitPackets()
	}
	if err != nil {
		return fmt.Errorf("write the phase of the map resize for programs: %w", err)
	}
	return nil
}

func (realKernel) AwaitPackets() error { return pinnedmaps.AwaitPackets() }

// Pin pins a clone of the handle: the library records where it has pinned a handle, and does not pin it there a second time.
func (realKernel) Pin(m *ebpf.Map, path string) error {
	same, err := m.Clone()
	if err == nil {
		defer same.Close()
		err = same.Pin(path)
	}
	if err != nil {
		return fmt.Errorf("pin map at %s: %w", path, err)
	}
	return nil
}

func (realKernel) Move(from, to string) error { return os.Rename(from, to) }

func (realKernel) Watch(dir string) func(context.Context) error { return bpffs.NewWatch(dir).Next }

func (realKernel) Unpin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin map: %w", err)
	}
	return nil
}

func (realKernel) Mark(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("mark a map as not filled: %w", err)
	}
	return nil
}

func (realKernel) Pins(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	names := make([]string, 0, len(files))
	for _, f := range files {
		names = append(names, filepath.Base(f.Name()))
	}
	return names, err
}

func (realKernel) Size(m *ebpf.Map) uint32 { return m.MaxEntries() }

func (realKernel) Memory(m *ebpf.Map) uint64 {
	info, err := m.Info()
	if err != nil {
		return 0
	}
	bytes, _ := info.Memlock()
	return bytes
}

func (realKernel) Close(m *ebpf.Map) error { return m.Close() }
