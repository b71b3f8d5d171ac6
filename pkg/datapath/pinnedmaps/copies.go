package pinnedmaps

import "github.com/cilium/ebpf"

// Copies also gives access to the previous map of a resized map, which exists until every hook runs this generation: programs create entries in it. Cells use
// Copies to delete entries that programs create.
type Copies interface {
	Maps
	// Each calls do for the map, and then for its copy if it has one. No entry is copied between them meanwhile. Each joins the errors of do.
	Each(name string, do func(m *ebpf.Map) error) error
}
