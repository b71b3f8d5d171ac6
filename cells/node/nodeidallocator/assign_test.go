package nodeidallocator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

var removal = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func never(*nodeids.NodeID) bool  { return false }
func always(*nodeids.NodeID) bool { return true }

func named(names ...string) (rows []*nodes.Node) {
	for _, n := range names {
		rows = append(rows, &nodes.Node{Name: n, UID: "uid-" + n, Source: nodes.Kubernetes})
	}
	return rows
}

// assign computes the ids of all nodes.
func assign(have []*nodeids.NodeID, want []*nodes.Node, complete bool, now time.Time, unused func(*nodeids.NodeID) bool) assigned {
	return newTaken(have).assign(have, want, complete, now, unused)
}

// rows returns all rows, sorted by id.
func (a assigned) rows() []*nodeids.NodeID {
	return slices.SortedFunc(maps.Values(a.byName), func(x, y *nodeids.NodeID) int { return cmp.Compare(x.ID, y.ID) })
}

// waits reports whether an id is released and not freed yet.
func (a assigned) waits() bool {
	return slices.ContainsFunc(a.rows(), func(row *nodeids.NodeID) bool { return !row.Released.IsZero() })
}

func ids(a assigned) (list []string) {
	for _, row := range a.rows() {
		list = append(list, fmt.Sprint(row.ID, " ", row.Name))
	}
	return list
}

func TestAssign_ReservesTheIDOfARemovedNodeUntilItsFlowsEnded(t *testing.T) {
	t.Parallel()
	first := assign(nil, named("a", "b"), true, removal, always)
	require.Equal(t, []string{"1 a", "2 b"}, ids(first))

	gone := assign(first.rows(), named("b", "c"), true, removal, always)
	require.Equal(t, []string{"1 a", "2 b", "3 c"}, ids(gone), "a pass before the removal does not count")
	require.Equal(t, removal, gone.byName["a"].Released)
	require.True(t, gone.waits())

	waiting := assign(gone.rows(), named("b", "c", "d"), true, removal.Add(time.Hour), never)
	require.Equal(t, []string{"1 a", "2 b", "3 c", "4 d"}, ids(waiting))
	require.Equal(t, removal, waiting.byName["a"].Released, "the time of the removal stays")

	free := assign(waiting.rows(), named("b", "c", "d", "e"), true, removal.Add(time.Hour), always)
	require.Equal(t, []string{"1 e", "2 b", "3 c", "4 d"}, ids(free))
	require.False(t, free.waits())
}

func TestAssign_RemovesNothingBeforeTheNodesAreComplete(t *testing.T) {
	t.Parallel()
	first := assign(nil, named("a", "b"), true, removal, always)
	restart := assign(first.rows(), named("c"), false, removal, always)
	require.Equal(t, []string{"1 a", "2 b", "3 c"}, ids(restart))
	require.False(t, restart.waits())
}

func TestAssign_NamesTheNodesWithoutAnID(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range nodeids.Max + 2 {
		names = append(names, fmt.Sprintf("n%05d", i))
	}
	full := assign(nil, named(names...), true, removal, always)
	require.Len(t, full.rows(), nodeids.Max)
	require.EqualValues(t, nodeids.Max, full.byName[names[nodeids.Max-1]].ID)
	require.Equal(t, names[nodeids.Max:], full.without)
}
