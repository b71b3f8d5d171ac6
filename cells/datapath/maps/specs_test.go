package maps

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// TestSpecs_MaglevTablesOnlyIfUsed: tables take memory only if a service may use Maglev.
func TestSpecs_MaglevTablesOnlyIfUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		agent agentconfig.Agent
		want  uint32
	}{
		"no service":               {agentconfig.Agent{MaglevTableSize: 251}, 1},
		"all services":             {agentconfig.Agent{MaglevTableSize: 251, Maglev: true}, 3 * 251},
		"services that require it": {agentconfig.Agent{MaglevTableSize: 251, AlgorithmAnnotation: true}, 3 * 251},
	} {
		config := DefaultConfig
		config.MaglevTables = 3
		specs, err := newSpecs(config, c.agent)
		if err != nil || specs[bpf.MapMaglev].MaxEntries != c.want {
			t.Errorf("%s: %d elements, want %d: %v", name, specs[bpf.MapMaglev].MaxEntries, c.want, err)
		}
	}
}

// A cluster of 5,000 nodes with 30 pods each: a pod has an address of each family, and a node has one in the underlay and one in the tunnel. With a smaller map
// some pods would have no identity.
func TestSpecs_IpcacheFitsLargeCluster(t *testing.T) {
	t.Parallel()
	specs, err := newSpecs(DefaultConfig, agentconfig.Agent{})
	if err != nil {
		t.Fatal(err)
	}
	const want = 5000 * (30 + 2) * 2
	have := specs[bpf.MapIpcache]
	if have.MaxEntries < want {
		t.Errorf("ipcache has %d entries, want at least %d", have.MaxEntries, want)
	}
	if have.Former != nil && have.Former.Spec.MaxEntries < have.MaxEntries {
		t.Errorf("ipcache has %d entries in the layout before, want %d", have.Former.Spec.MaxEntries, have.MaxEntries)
	}
}

// The flag sets the size of the map of address ranges.
func TestSpecs_CIDRs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		max  int
		want uint32 // 0 for an error
	}{{512000, 512000}, {256, 256}, {255, 0}, {4 << 20, 4 << 20}, {4<<20 + 1, 0}} {
		config := DefaultConfig
		if c.want != 512000 { // the default
			config.CIDRsMax = c.max
		}
		specs, err := newSpecs(config, agentconfig.Agent{})
		if got := specs[bpf.MapCIDRs].MapSpec; (err != nil) != (c.want == 0) || err == nil && got.MaxEntries != c.want {
			t.Errorf("--bpf-cidr-map-max=%d: %v, %v", c.max, got, err)
		}
	}
}

func TestSizeLRU_GrowsWithTheCPUs(t *testing.T) {
	t.Parallel()
	for cpus, want := range map[int]uint32{1: 16384, 2: 16384, 64: 16384, 65: 65 * 256, 512: 512 * 256} {
		specs := map[string]*ebpf.MapSpec{
			"lru":  {Type: ebpf.LRUHash, MaxEntries: 16384},
			"hash": {Type: ebpf.Hash, MaxEntries: 7},
		}
		sizeLRU(specs, cpus)
		if got := specs["lru"].MaxEntries; got != want || specs["hash"].MaxEntries != 7 {
			t.Errorf("%d CPUs: %d entries, want %d; a hash has %d", cpus, got, want, specs["hash"].MaxEntries)
		}
	}
}
