package nodeidallocator

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// assigned are the ids that one round computes. Rows must not be changed in place.
type assigned struct {
	byName map[string]*nodeids.NodeID
	// without lists the nodes that get no id, because all are in use.
	without []string
}

// taken is the set of the ids that are in use.
type taken struct {
	ids   [nodeids.Max + 1]bool
	free  uint16                // no lower id is free, except 0
	addrs map[netip.Addr]uint16 // ids by the addresses that the previous run left in node_addrs
}

func newTaken(rows []*nodeids.NodeID) *taken {
	t := &taken{free: 1}
	for _, row := range rows {
		t.ids[row.ID] = true
	}
	return t
}

// take marks the lowest free id as used and returns it; 0 when no id is free.
func (t *taken) take() uint16 {
	for t.free <= nodeids.Max && t.ids[t.free] {
		t.free++
	}
	if t.free > nodeids.Max {
		return 0
	}
	t.ids[t.free] = true
	return t.free
}

func (t *taken) release(id uint16) {
	t.ids[id] = false
	t.free = min(t.free, id)
}

// assign computes the ids of some nodes: have are the present rows of these nodes, want are the existing nodes. Existing nodes keep their ids; a new node gets
// the id of [taken.forNode]. With complete set, assign marks the ids of removed nodes as released at the time now, and frees a released id if unused reports true.
func (t *taken) assign(have []*nodeids.NodeID, want []*nodes.Node, complete bool, now time.Time, unused func(*nodeids.NodeID) bool) assigned {
	a := assigned{byName: make(map[string]*nodeids.NodeID, len(have))}
	exists := make(map[string]*nodes.Node, len(want))
	for _, n := range want {
		if n.Source != nodes.Local {
			exists[n.Name] = n
		}
	}
	for _, row := range have {
		n := exists[row.Name]
		switch {
		case n != nil && (n.UID != row.UID || !row.Released.IsZero()):
			row = &nodeids.NodeID{ID: row.ID, Name: row.Name, UID: n.UID}
		case n == nil && complete && row.Released.IsZero():
			row = &nodeids.NodeID{ID: row.ID, Name: row.Name, UID: row.UID, Released: now}
		case n == nil && complete && unused(row):
			t.release(row.ID)
			continue
		}
		a.byName[row.Name] = row
	}
	for _, name := range slices.Sorted(maps.Keys(exists)) {
		if a.byName[name] != nil {
			continue
		}
		id := t.forNode(exists[name], a.byName)
		if id == 0 {
			a.without = append(a.without, name)
			continue
		}
		a.byName[name] = &nodeids.NodeID{ID: id, Name: name, UID: exists[name].UID}
	}
	return a
}
