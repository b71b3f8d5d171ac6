package nodeids

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/settings"
	tables "github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

var removal = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func never(*tables.NodeID) bool  { return false }
func always(*tables.NodeID) bool { return true }

func named(names ...string) (rows []*nodes.Node) {
	for _, n := range names {
		rows = append(rows, &nodes.Node{Name: n, UID: "uid-" + n, Source: nodes.Kubernetes})
	}
	return rows
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
	for i := range tables.Max + 2 {
		names = append(names, fmt.Sprintf("n%05d", i))
	}
	full := assign(nil, named(names...), true, removal, always)
	require.Len(t, full.rows(), tables.Max)
	require.EqualValues(t, tables.Max, full.byName[names[tables.Max-1]].ID)
	require.Equal(t, names[tables.Max:], full.without)
}

func TestFile_RestoresIDs(t *testing.T) {
	t.Parallel()
	f := newFile(settings.Agent{StateDir: t.TempDir()})
	rows, err := f.read(slog.New(slog.DiscardHandler), removal)
	require.NoError(t, err)
	require.Empty(t, rows)

	a := assign(nil, named("a", "b"), true, removal, always)
	a = assign(a.rows(), named("b"), true, removal, never)
	require.NoError(t, f.write(a.rows()))
	started := removal.Add(time.Hour)
	rows, err = f.read(slog.New(slog.DiscardHandler), started)
	require.NoError(t, err)
	require.Equal(t, []*tables.NodeID{{ID: 1, Name: "a", UID: "uid-a", Released: started}, {ID: 2, Name: "b", UID: "uid-b"}}, rows)
}

func TestFile_ThatIsDamagedIsSetAside(t *testing.T) {
	t.Parallel()
	damaged := map[string][]*tables.NodeID{
		"an id twice":     {{ID: 1, Name: "a"}, {ID: 1, Name: "b"}},
		"a name twice":    {{ID: 1, Name: "a"}, {ID: 2, Name: "a"}},
		"no id":           {{Name: "a"}},
		"an id too large": {{ID: tables.Max + 1, Name: "a"}},
		"no row":          {nil},
	}
	for name, rows := range damaged {
		dir := t.TempDir()
		f := newFile(settings.Agent{StateDir: dir})
		require.NoError(t, f.store.Open())
		require.NoError(t, f.write(rows), name)
		read, err := f.read(slog.New(slog.DiscardHandler), removal)
		require.NoError(t, err, name)
		require.Empty(t, read, name)
		require.NoFileExists(t, filepath.Join(dir, "nodes", fileName), name)
		require.NoError(t, f.write(nil), "the next file replaces it")
		_, err = os.Stat(filepath.Join(dir, "nodes", fileName))
		require.NoError(t, err, name)
	}
}
