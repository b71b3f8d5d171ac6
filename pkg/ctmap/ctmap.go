// Package ctmap reads the maps in which the programs remember flows, and says in words what stands there.
package ctmap

import (
	"github.com/waggle-net/waggle/bpf"
)

// Map is one of the maps of flows.
type Map struct {
	Name string
	IPv6 bool
	// Established maps hold the flows that somebody has answered, the others those that wait for an answer.
	Established bool
}

// Maps are all of them.
func Maps() []Map {
	return []Map{
		{Name: bpf.MapCtEst4, Established: true},
		{Name: bpf.MapCtEst6, Established: true, IPv6: true},
		{Name: bpf.MapCtNew4},
		{Name: bpf.MapCtNew6, IPv6: true},
	}
}

// Key is a key of a map of flows, as the programs write it. Of the two forms one is used.
type Key struct {
	IPv6 bool
	V4   bpf.CtKey4
	V6   bpf.CtKey6
}

// Value is the key as a map of its family takes it.
func (k *Key) Value() any {
	if k.IPv6 {
		return &k.V6
	}
	return &k.V4
}

// Flow is one entry of one map.
type Flow struct {
	Key   Key
	Entry bpf.CtEntry
	// Established is whether the entry is in the map of answered flows.
	Established bool
}

// Tuple is the flow from its opener to its target.
func (f *Flow) Tuple() bpf.CtFlow {
	if f.Key.IPv6 {
		return bpf.NewCtFlow6(&f.Key.V6, &f.Entry)
	}
	return bpf.NewCtFlow4(&f.Key.V4, &f.Entry)
}

// Owner is the endpoint in whose share an established flow is counted: the opener when it is local, otherwise the target.
func (f *Flow) Owner() uint16 {
	if f.Entry.Opener != 0 {
		return f.Entry.Opener
	}
	return f.Entry.Target
}
