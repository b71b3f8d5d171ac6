// Package bpfmaps is how cells reach the pinned BPF maps of the agent.
package bpfmaps

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// Errors that callers tell apart.
var (
	// ErrUnknown means that no program has a map of that name.
	ErrUnknown = errors.New("no such map")
	// ErrNotOpen means that the maps are not opened yet, or not any more.
	ErrNotOpen = errors.New("maps are not open")
)

// Maps gives out the maps. Nothing is open before the start hook of cells/maps has run; every cell that takes Maps
// starts after it and stops before it.
type Maps interface {
	// Get returns an open map. It belongs to Maps: do not close it. A map whose pin does not fit gives an error that
	// names the pin and the remedy, each time. Read it only: see Put.
	Get(name string) (*ebpf.Map, error)
	// Put and Delete change an entry of a map, and of its twin: the same map as programs of another generation read it. Key
	// and value are of fixed size. Deleting what is not there gives [ebpf.ErrKeyNotExist].
	Put(name string, key, value any) error
	Delete(name string, key any) error
	// All returns the open maps by name, to be handed to programs. It fails when one of them cannot be used. Maps of flows are there twice, see [Resizing].
	All() (map[string]*ebpf.Map, error)
	// Entries prints the contents of a map, sorted by key. Errors: [ErrUnknown].
	Entries(name string) ([]Entry, error)
}

// Entry is one element of a map, printed.
type Entry struct{ Key, Value string }

// Resizing returns the bits ([bpf.ResizeMap]) of the maps of flows that get another size by a change for which programs are that get these maps: such a map has the
// size that is configured, and its former map is the one that programs on hooks may still use. Of other maps of flows both are the same.
func Resizing(all map[string]*ebpf.Map) (bits uint32) {
	for _, name := range bpf.FlowMaps() {
		if former := all[bpf.FormerName(name)]; former != nil && former != all[name] {
			bits |= bpf.ResizeMap(name)
		}
	}
	return bits
}
