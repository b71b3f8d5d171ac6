package maps

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// layout is the layout of one map for the programs of this build.
type layout struct {
	*ebpf.MapSpec
	Version uint32
	Former  *bpf.PreviousLayout // the layout in the previous release; nil if it is the same
}

// specs holds the layouts of the maps of all programs, by name.
type specs map[string]layout

func newSpecs(c Config, agent agentconfig.Agent) (specs, error) {
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
	all[bpf.MapCIDRs].MaxEntries = uint32(c.CIDRsMax)
	all[bpf.MapIpcache].MaxEntries = addresses
	sizeServices(all, c, agent)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("size the LRU maps: count the possible CPUs: %w", err)
	}
	sizeLRU(all, cpus)
	out := make(specs, len(all))
	for name, spec := range all {
		out[name] = layout{spec, bpf.LayoutVersion(name), bpf.PreviousLayoutOf(name)}
	}
	for _, name := range []string{bpf.MapIpcache, bpf.MapCIDRs, bpf.MapAffinity} { // the shadow map gets all entries too
		if l := out[name]; l.Former != nil {
			l.Former.Spec.MaxEntries = l.MaxEntries
		}
	}
	return out, nil
}

// addresses is the size of ipcache: 150,000 pods and 5,000 nodes take 330,000 entries with both families. An empty map takes 16 bytes of memory for each entry.
const addresses = 1 << 19

// lruPerCPU is the minimum number of entries of an LRU map for each possible CPU. Before Linux 6.17 each CPU takes free entries in batches of 128 and evicts
// entries of its own list first (kernel/bpf/bpf_lru_list.c): with fewer than two batches for each CPU, one CPU evicts entries that are in use while other CPUs
// hold free ones.
const lruPerCPU = 256

// sizeLRU enlarges LRU maps that are too small for the machine's CPUs.
func sizeLRU(all map[string]*ebpf.MapSpec, cpus int) {
	for _, spec := range all {
		if spec.Type == ebpf.LRUHash {
			spec.MaxEntries = max(spec.MaxEntries, lruPerCPU*uint32(cpus))
		}
	}
}

// sizeServices sets the sizes of the maps of services and of translated flows.
func sizeServices(all map[string]*ebpf.MapSpec, c Config, agent agentconfig.Agent) {
	for _, name := range []string{bpf.MapServices, bpf.MapBackends, bpf.MapSourceRanges} {
		all[name].MaxEntries = uint32(c.ServicesMax)
	}
	all[bpf.MapServiceSlots].MaxEntries = uint32(c.ServicesMax / 2 * 3)
	all[bpf.MapAffinity].MaxEntries = uint32(c.AffinityMax)
	all[bpf.MapAffinityMembers].MaxEntries = uint32(c.AffinityMax)
	if agent.MaglevTables() {
		all[bpf.MapMaglev].MaxEntries = uint32(c.MaglevTables * agent.MaglevTableSize)
	}
	all[bpf.MapNat4].MaxEntries = uint32(c.NatMax)
	all[bpf.MapNat6].MaxEntries = uint32(c.NatMax / 2)
}
