package bpf

import (
	"bytes"
	"maps"
	"slices"
	"testing"
)

// TestReadAhead is not parallel: the objects belong to the process.
func TestReadAhead(t *testing.T) {
	want, err := MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	ReadAhead()
	defer EndReadAhead()
	got, err := MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("maps %v, without reading ahead %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	for _, program := range Programs() {
		held := ahead.Load().specs[program].get()
		first, err := Load(program)
		if err != nil {
			t.Fatal(err)
		}
		if held == nil || first != held {
			t.Errorf("%s was read again", program)
		}
		second, err := Load(program)
		if err != nil {
			t.Fatal(err)
		}
		if second == first || second.Programs[program] == nil || len(second.Programs) != len(first.Programs) {
			t.Errorf("%s: the second call returns the same spec, or other programs", program)
		}
		for name, want := range second.Variables {
			if got := first.Variables[name]; got == nil || !bytes.Equal(got.Value, want.Value) {
				t.Errorf("%s: variable %s is %+v, without reading ahead %+v", program, name, got, want)
			}
		}
		for name, m := range first.Maps {
			if got[name] == m {
				t.Errorf("%s: its map %s is also the caller's of MapSpecs", program, name)
			}
		}
	}
}

func TestEndReadAhead(t *testing.T) {
	ReadAhead()
	EndReadAhead()
	spec, err := Load(PodEgress)
	if err != nil || spec.Programs[PodEgress] == nil {
		t.Errorf("after the end: %v, %v", spec, err)
	}
}
