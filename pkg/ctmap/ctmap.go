// Package ctmap reads the maps in which the programs remember flows, and says in words what stands there.
package ctmap

import (
	"github.com/waggle-net/waggle/bpf"
)

// Map is one of the maps of flows.
type Map struct {
	Name string
	IPv6 bool
	// Established maps hold the flows whose initiator sent again after a reply, the others those before that.
	Established bool
}

// Maps are all of them.
func Maps() []Map {
	return []Map{
		{Name: bpf.MapCtEst4, Established: true},
		{Name: bpf.MapCtEst6, Established: true, IPv6: true},
		{Name: bpf.MapCtNew4},
		{Name: bpf.MapCtNew6, IPv6: true},
		{Name: bpf.MapCtBurst4},
		{Name: bpf.MapCtBurst6, IPv6: true},
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
	// Established is whether the entry is in the map of established flows.
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

// guaranteed is the number of endpoints whose guarantees the table has room for.
const guaranteed = 256

// Share returns how many established flows one endpoint may have when the table has room for so many entries, from a percentage of them. It is at
// least 1.
func Share(entries uint32, percent int) uint32 {
	return uint32(max(1, uint64(entries)*uint64(percent)/100))
}

// NewRate returns how many new flows of one endpoint have a place in a table of so many entries in each tick.
func NewRate(entries uint32) uint32 { return entries / 16 }

// Guarantee returns how many established flows each of the first 256 endpoints can have, however many the others have.
func Guarantee(entries uint32) uint32 { return entries / (4 * guaranteed) }

// Beyond returns how many established flows all endpoints together may have beyond their guarantees.
func Beyond(entries uint32) uint32 { return entries - guaranteed*Guarantee(entries) }
