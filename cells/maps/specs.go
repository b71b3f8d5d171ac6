package maps

import (
	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// layout is one map as this build's programs want it.
type layout struct {
	*ebpf.MapSpec
	Version uint32
	Former  *bpf.Former // what the release before made of it; nil when it was the same
}

// specs are the maps of all programs by name.
type specs map[string]layout

func newSpecs() (specs, error) {
	all, err := bpf.MapSpecs()
	if err != nil {
		return nil, err
	}
	out := make(specs, len(all))
	for name, spec := range all {
		out[name] = layout{spec, bpf.LayoutVersion(name), bpf.FormerLayout(name)}
	}
	return out, nil
}
