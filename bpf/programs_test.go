package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// Tail calls and scratch memory belong to one generation, so such maps are never pinned and shared.
func TestMapSpecs_GenerationMapsAreNotShared(t *testing.T) {
	t.Parallel()
	specs, err := MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range specs {
		if ofGeneration(name, m) || m.Pinning != ebpf.PinNone {
			t.Errorf("map %s (%s, pinning %v) is shared", name, m.Type, m.Pinning)
		}
	}
	for name, kind := range map[string]ebpf.MapType{"calls": ebpf.ProgramArray, "scratch": ebpf.PerCPUArray,
		"scratch2": ebpf.PerCPUHash, "scratch3": ebpf.LRUCPUHash, "inner": ebpf.HashOfMaps, "inner2": ebpf.ArrayOfMaps} {
		if !ofGeneration(name, &ebpf.MapSpec{Type: kind}) {
			t.Errorf("a map %s of type %s would be shared between generations", name, kind)
		}
	}
}
