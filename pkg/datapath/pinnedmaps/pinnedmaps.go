// Package pinnedmaps gives cells access to the pinned BPF maps of the agent.
package pinnedmaps

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// Errors for errors.Is.
var (
	// ErrUnknown means that no program has a map with this name.
	ErrUnknown = errors.New("no such map")
	// ErrNotOpen means that the maps are not yet open, or closed.
	ErrNotOpen = errors.New("maps are not open")
)

// Maps gives access to the maps. No map is open before the start hook of cells/datapath/maps has run; every cell that takes Maps starts after it and stops before it.
type Maps interface {
	// Get returns an open map. Maps owns it: callers must not close it. For a map whose pin is incompatible, every call returns an error with the pin and the
	// remedy. The caller must only read the map: see Put.
	Get(name string) (*ebpf.Map, error)
	// Put and Delete change an entry of a map, and of its shadow map: the same map in the layout of another generation of programs. Keys and values have
	// fixed sizes. Deleting a missing entry returns [ebpf.ErrKeyNotExist].
	Put(name string, key, value any) error
	Delete(name string, key any) error
	// All returns the open maps by name, for loading programs. It fails when one of them is unusable. It contains two maps for each map of flows, see
	// [Resizing].
	All() (map[string]*ebpf.Map, error)
	// Entries formats the contents of a map, sorted by key. Errors: [ErrUnknown].
	Entries(name string) ([]Entry, error)
}

// Entry is one formatted element of a map.
type Entry struct{ Key, Value string }

// Resizing returns the bits ([bpf.ResizeMap]) of the maps of flows that are being resized. A resized map has the configured size, and programs on hooks may
// still use its previous map. For other maps of flows both are the same map.
func Resizing(all map[string]*ebpf.Map) (bits uint32) {
	for _, name := range bpf.FlowMaps() {
		if previous := all[bpf.PreviousName(name)]; previous != nil && previous != all[name] {
			bits |= bpf.ResizeMap(name)
		}
	}
	return bits
}
