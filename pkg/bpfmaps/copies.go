package bpfmaps

import "github.com/cilium/ebpf"

// Copies also reaches the copy that a resized map has until every hook runs this generation: programs make entries there. It is for cells that delete entries that programs make.
type Copies interface {
	Maps
	// Each calls do for the map, and then for its copy where it has one. No entry is copied from one to the other meanwhile. It joins
	// the errors of do.
	Each(name string, do func(m *ebpf.Map) error) error
}
