package maps

import (
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/settings"
)

// TestSpecs_RoomForMaglev: tables take memory only where somebody may want one.
func TestSpecs_RoomForMaglev(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		agent settings.Agent
		want  uint32
	}{
		"nobody":                   {settings.Agent{MaglevTableSize: 251}, 1},
		"all services":             {settings.Agent{MaglevTableSize: 251, Maglev: true}, 3 * 251},
		"services that ask for it": {settings.Agent{MaglevTableSize: 251, AlgorithmAnnotation: true}, 3 * 251},
	} {
		config := DefaultConfig
		config.MaglevTables = 3
		specs, err := newSpecs(config, c.agent)
		if err != nil || specs[bpf.MapMaglev].MaxEntries != c.want {
			t.Errorf("%s: %d elements, want %d: %v", name, specs[bpf.MapMaglev].MaxEntries, c.want, err)
		}
	}
}
