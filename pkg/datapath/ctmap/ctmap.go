// Package ctmap reads the connection tracking maps of the programs and formats their entries.
package ctmap

import (
	"github.com/waggle-net/waggle/bpf"
)

// Map is one of the connection tracking maps.
type Map struct {
	Name string
	IPv6 bool
	// Established maps hold the flows whose initiator has sent another packet after a reply. The other maps hold flows before that packet.
	Established bool
}

// Maps returns all connection tracking maps.
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

// Key is a key of a connection tracking map in the layout of the programs. Exactly one of the two forms is used.
type Key struct {
	IPv6 bool
	V4   bpf.CtKey4
	V6   bpf.CtKey6
}

// Value returns the key in the type of the family's map.
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
	// Established means that the entry is in a map of established flows.
	Established bool
}

// Tuple returns the flow in the direction from its initiator to its responder.
func (f *Flow) Tuple() bpf.CtFlow {
	if f.Key.IPv6 {
		return bpf.NewCtFlow6(&f.Key.V6, &f.Entry)
	}
	return bpf.NewCtFlow4(&f.Key.V4, &f.Entry)
}

// Owner returns the endpoint whose quota counts an established flow: the initiator if it is local, otherwise the responder.
func (f *Flow) Owner() uint16 {
	if f.Entry.Initiator != 0 {
		return f.Entry.Initiator
	}
	return f.Entry.Responder
}

// guaranteed is the number of endpoints that can have their guarantee at the same time.
const guaranteed = 256

// Share returns the quota of one endpoint: its maximum number of established flows in a table with this many entries, of which it may fill this
// percentage. It is at least 1.
func Share(entries uint32, percent int) uint32 {
	return uint32(max(1, uint64(entries)*uint64(percent)/100))
}

// NewRate returns the number of new flows of one endpoint in each tick that a table of new flows with this many entries stores. Further flows are stored in the
// burst maps.
func NewRate(entries uint32) uint32 { return entries / 16 }

// Guarantee returns the number of established flows that each of 256 endpoints can have, independent of the flows of other endpoints.
func Guarantee(entries uint32) uint32 { return entries / (4 * guaranteed) }

// Beyond returns the maximum number of established flows, of all endpoints together, beyond their guarantees.
func Beyond(entries uint32) uint32 { return entries - guaranteed*Guarantee(entries) }
