package servicemap

import (
	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// Maps holds the maps of services. Only the cell service-maps writes them, except Affinity, which the programs write.
type Maps struct {
	Services Table[bpf.ServiceKey, bpf.Service]
	Backends Table[uint32, bpf.Backend] // by id
	Slots    Table[uint32, uint32]      // ids of backends
	Maglev   Table[uint32, uint32]      // ids of backends
	Members  Table[bpf.AffinityMember, uint32]
	Ranges   Table[bpf.SourceRangeKey, uint32]
	Affinity Table[bpf.AffinityKey, bpf.AffinityEntry]
}

// New returns the maps of the agent.
func New(m pinnedmaps.Batches) Maps {
	return Maps{
		Services: pinned[bpf.ServiceKey, bpf.Service]{m, bpf.MapServices},
		Backends: pinned[uint32, bpf.Backend]{m, bpf.MapBackends},
		Slots:    pinned[uint32, uint32]{m, bpf.MapServiceSlots},
		Maglev:   pinned[uint32, uint32]{m, bpf.MapMaglev},
		Members:  pinned[bpf.AffinityMember, uint32]{m, bpf.MapAffinityMembers},
		Ranges:   pinned[bpf.SourceRangeKey, uint32]{m, bpf.MapSourceRanges},
		Affinity: pinned[bpf.AffinityKey, bpf.AffinityEntry]{m, bpf.MapAffinity},
	}
}

// Table is one map. Errors name the map.
type Table[K comparable, V any] interface {
	// Name returns the name of the map in the programs.
	Name() string
	// Size returns the capacity of the map in entries.
	Size() (uint32, error)
	// Dump reads all entries; for an array, all elements in order.
	Dump() ([]K, []V, error)
	// Head reads the first n elements of an array, or all when it has fewer.
	Head(n int) ([]K, []V, error)
	// Put writes entries in order. It continues after an entry that fails, and returns the errors by position.
	Put(keys []K, values []V) Failures
	// Delete removes entries; a missing entry is success. Elements of an array cannot be removed.
	Delete(keys []K) Failures
}

// Failures holds the errors of entries that could not be changed, by their position in the arguments. It is nil without errors.
type Failures map[int]error

// Error returns one of the errors, or nil.
func (f Failures) Error() error {
	for _, err := range f {
		return err
	}
	return nil
}

// pinned is a map of the agent.
type pinned[K comparable, V any] struct {
	maps pinnedmaps.Batches
	name string
}

func (p pinned[K, V]) Name() string { return p.name }

func (p pinned[K, V]) get() (*ebpf.Map, error) { return p.maps.Get(p.name) }
