package maps

import (
	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// specs are the maps of all programs by name.
type specs map[string]*ebpf.MapSpec

func newSpecs() (specs, error) { return bpf.MapSpecs() }
