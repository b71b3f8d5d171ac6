package servicemap

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// Frontend is an entry of the map of services, with its entries of the other maps.
type Frontend struct {
	loadbalancer.Address
	Scope    uint8          `json:"scope"` // [bpf.ScopeExternal] or [bpf.ScopeInternal]
	ID       uint32         `json:"id"`
	Flags    []string       `json:"flags,omitempty"`    // as in service_maps.h, in its order
	Backends []uint32       `json:"backends"`           // ids in its slots
	Maglev   uint32         `json:"maglev,omitempty"`   // slots of its table, 0 for none
	Affinity uint32         `json:"affinity,omitempty"` // seconds
	Ranges   []netip.Prefix `json:"ranges,omitempty"`
	Deny     bool           `json:"deny,omitempty"` // clients in Ranges are denied
}

// Backend is an entry of the map of backends.
type Backend struct {
	ID uint32 `json:"id"`
	loadbalancer.Address
	Local bool `json:"local,omitempty"`
}

// Dump reads the current entries. Frontends are sorted by address and scope, backends by id. The result is not a snapshot: a concurrent change may be included
// in part.
func (m Maps) Dump() ([]Frontend, []Backend, error) {
	backends, err := m.dumpBackends()
	if err != nil {
		return nil, nil, err
	}
	keys, services, err := m.Services.Dump()
	if err != nil {
		return nil, nil, err
	}
	_, slots, err := m.Slots.Dump()
	if err != nil {
		return nil, nil, err
	}
	prefixes, _, err := m.Ranges.Dump()
	if err != nil {
		return nil, nil, err
	}
	type policy struct {
		frontend uint32
		deny     bool
	}
	ranges := map[policy][]netip.Prefix{}
	for _, key := range prefixes {
		r := bpf.SourceRangeOf(key)
		of := policy{key.Service, r.Deny}
		ranges[of] = append(ranges[of], r.Prefix)
	}
	for _, list := range ranges {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	frontends := make([]Frontend, len(keys))
	for i, key := range keys {
		s := services[i]
		frontends[i] = Frontend{Address: bpf.AddressOfService(key), Scope: key.Scope, ID: s.Id, Flags: flagNames(s.Flags),
			Backends: Slice(slots, s.First, s.Count)}
		if s.Flags&bpf.ServiceMaglev != 0 {
			frontends[i].Maglev = s.MaglevSize
		}
		if s.Flags&bpf.ServiceAffinity != 0 {
			frontends[i].Affinity = s.Affinity
		}
		if s.Flags&bpf.ServiceRanges != 0 {
			of := policy{s.Id, s.Flags&bpf.ServiceRangesDeny != 0}
			frontends[i].Ranges, frontends[i].Deny = ranges[of], of.deny
		}
	}
	slices.SortFunc(frontends, func(a, b Frontend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Scope, b.Scope))
	})
	return frontends, backends, nil
}

func (m Maps) dumpBackends() ([]Backend, error) {
	ids, values, err := m.Backends.Dump()
	if err != nil {
		return nil, err
	}
	backends := make([]Backend, len(ids))
	for i, id := range ids {
		backends[i] = Backend{ID: id, Address: bpf.AddressOfBackend(values[i]), Local: values[i].Flags&bpf.BackendLocal != 0}
	}
	slices.SortFunc(backends, func(a, b Backend) int { return cmp.Compare(a.ID, b.ID) })
	return backends, nil
}

// IDs reads the ids of frontends and backends. If two backends have the same address, the lower id counts.
func (m Maps) IDs() (frontends, backends map[loadbalancer.Address]uint32, err error) {
	keys, services, err := m.Services.Dump()
	if err != nil {
		return nil, nil, err
	}
	frontends = make(map[loadbalancer.Address]uint32, len(keys))
	for i, key := range keys {
		if a := bpf.AddressOfService(key); key.Scope == bpf.ScopeExternal || frontends[a] == 0 {
			frontends[a] = services[i].Id
		}
	}
	list, err := m.dumpBackends()
	if err != nil {
		return nil, nil, err
	}
	backends = make(map[loadbalancer.Address]uint32, len(list))
	for _, b := range list {
		if backends[b.Address] == 0 {
			backends[b.Address] = b.ID
		}
	}
	return frontends, backends, nil
}

// Slice returns a copy of a range of an array's elements. It ignores the part of the range outside the array.
func Slice(elements []uint32, first, count uint32) []uint32 {
	n := uint64(len(elements))
	from := min(uint64(first), n)
	return slices.Clone(elements[from:min(from+uint64(count), n)])
}

var flagTexts = []struct {
	is   uint32
	name string
}{
	{uint32(bpf.ServiceTwoScopes), "two-scopes"},
	{uint32(bpf.ServiceOutside), "outside"},
	{uint32(bpf.ServiceRanges), "ranges"},
	{uint32(bpf.ServiceDrop), "drop"},
	{uint32(bpf.ServiceAffinity), "affinity"},
	{uint32(bpf.ServiceMaglev), "maglev"},
	{uint32(bpf.ServiceNodePort), "node-port"},
	{uint32(bpf.ServiceLocalOnly), "local-only"},
	{uint32(bpf.ServiceLoopback), "loopback"},
	{uint32(bpf.ServiceRangesDeny), "ranges-deny"},
}

func flagNames[F ~uint32](flags F) (names []string) {
	for _, t := range flagTexts {
		if uint32(flags)&t.is != 0 {
			names = append(names, t.name)
		}
	}
	return names
}
