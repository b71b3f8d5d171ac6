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

func newSpecs(c Config) (specs, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	all, err := bpf.MapSpecs()
	if err != nil {
		return nil, err
	}
	all[bpf.MapCtEst4].MaxEntries = uint32(c.FlowsMax)
	all[bpf.MapCtEst6].MaxEntries = uint32(c.FlowsMax)
	all[bpf.MapPolicy].MaxEntries = uint32(c.PolicyMax)
	all[bpf.MapPolicyRanges].MaxEntries = uint32(c.PolicyMax / rangesShare)
	out := make(specs, len(all))
	for name, spec := range all {
		out[name] = layout{spec, bpf.LayoutVersion(name), bpf.FormerLayout(name)}
	}
	return out, nil
}
