package nodeids

import (
	"cmp"
	"maps"
	"slices"
	"time"

	tables "github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// assigned are the ids as one round computes them. Rows are never changed in place.
type assigned struct {
	byName map[string]*tables.NodeID
	// without lists the nodes that get no id, because all are in use.
	without []string
}

// assign keeps the ids of nodes that exist, and gives each new node the lowest free one. With complete set, it marks the ids of all other nodes as released
// at the time now, and frees those that unused reports.
func assign(have []*tables.NodeID, want []*nodes.Node, complete bool, now time.Time, unused func(*tables.NodeID) bool) assigned {
	a := assigned{byName: make(map[string]*tables.NodeID, len(have))}
	exists := make(map[string]*nodes.Node, len(want))
	for _, n := range want {
		if n.Source != nodes.Local {
			exists[n.Name] = n
		}
	}
	taken := make([]bool, tables.Max+1)
	for _, row := range have {
		n := exists[row.Name]
		switch {
		case n != nil && (n.UID != row.UID || !row.Released.IsZero()):
			row = &tables.NodeID{ID: row.ID, Name: row.Name, UID: n.UID}
		case n == nil && complete && row.Released.IsZero():
			row = &tables.NodeID{ID: row.ID, Name: row.Name, UID: row.UID, Released: now}
		case n == nil && complete && unused(row):
			continue
		}
		a.byName[row.Name], taken[row.ID] = row, true
	}
	next := 1
	for _, name := range slices.Sorted(maps.Keys(exists)) {
		if a.byName[name] != nil {
			continue
		}
		for next <= tables.Max && taken[next] {
			next++
		}
		if next > tables.Max {
			a.without = append(a.without, name)
			continue
		}
		a.byName[name] = &tables.NodeID{ID: uint16(next), Name: name, UID: exists[name].UID}
		next++
	}
	return a
}

// rows are all ids in their order.
func (a assigned) rows() []*tables.NodeID {
	return slices.SortedFunc(maps.Values(a.byName), func(x, y *tables.NodeID) int { return cmp.Compare(x.ID, y.ID) })
}

// waits reports whether an id waits for the collector of flows.
func (a assigned) waits() bool {
	for _, row := range a.byName {
		if !row.Released.IsZero() {
			return true
		}
	}
	return false
}
