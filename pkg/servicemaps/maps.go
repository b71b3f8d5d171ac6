package servicemaps

import (
	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
)

// Maps are all of them. The cell service-maps alone writes them, but for Affinity, which the programs write.
type Maps struct {
	Services Table[bpf.ServiceKey, bpf.Service]
	Backends Table[uint32, bpf.Backend] // by id
	Slots    Table[uint32, uint32]      // ids of backends
	Maglev   Table[uint32, uint32]      // likewise
	Members  Table[bpf.AffinityMember, uint32]
	Ranges   Table[bpf.SourceRangeKey, uint32]
	Affinity Table[bpf.AffinityKey, bpf.AffinityEntry]
}

// New are the maps of the agent.
func New(m bpfmaps.Batches) Maps {
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

// Table is one map. Errors say which it is.
type Table[K comparable, V any] interface {
	// Name is what programs call it.
	Name() string
	// Size is how many entries it has room for.
	Size() (uint32, error)
	// Dump reads all entries. Of an array these are all its elements, in order.
	Dump() ([]K, []V, error)
	// Head reads the first n elements of an array, or all when it has fewer.
	Head(n int) ([]K, []V, error)
	// Put writes entries, in their order. It goes on after one that fails, and returns why each of these did, by its position.
	Put(keys []K, values []V) Failures
	// Delete removes entries; those that are gone already are success. Elements of an array cannot be removed.
	Delete(keys []K) Failures
}

// Failures are why entries could not be changed, by their position in what was to be changed. It is nil when all were.
type Failures map[int]error

// Error is one of them, nil when there is none.
func (f Failures) Error() error {
	for _, err := range f {
		return err
	}
	return nil
}

// pinned is a map of the agent.
type pinned[K comparable, V any] struct {
	maps bpfmaps.Batches
	name string
}

func (p pinned[K, V]) Name() string { return p.name }

func (p pinned[K, V]) get() (*ebpf.Map, error) { return p.maps.Get(p.name) }
