package nodeidallocator

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
)

var quiet = slog.New(slog.DiscardHandler)

// numbered returns rows with the ids of a range.
func numbered(from, to uint16) (rows []*nodeids.NodeID) {
	for id := from; id <= to; id++ {
		rows = append(rows, &nodeids.NodeID{ID: id, Name: fmt.Sprint("n", id)})
	}
	return rows
}

func TestFiles_RestoreIDs(t *testing.T) {
	t.Parallel()
	f := newFiles(agentconfig.Agent{StateDir: t.TempDir()})
	rows, missing, err := f.read(quiet, removal)
	require.NoError(t, err)
	require.Empty(t, rows)
	require.Empty(t, missing)

	a := assign(nil, named("a", "b"), true, removal, always)
	a = assign(a.rows(), named("b"), true, removal, never)
	high := numbered(3*fileIDs, 3*fileIDs+1)
	require.NoError(t, f.write(map[int][]*nodeids.NodeID{0: a.rows(), 2: nil, 3: high}))
	started := removal.Add(time.Hour)
	rows, missing, err = f.read(quiet, started)
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, append([]*nodeids.NodeID{{ID: 1, Name: "a", UID: "uid-a", Released: started}, {ID: 2, Name: "b", UID: "uid-b"}}, high...), rows)
}

// TestFiles_FirstFileContainsAllIDs: an older agent wrote all ids to the first file. The ids stay in this file until their own files are written.
func TestFiles_FirstFileContainsAllIDs(t *testing.T) {
	t.Parallel()
	f := newFiles(agentconfig.Agent{StateDir: t.TempDir()})
	require.NoError(t, f.store.Open())
	all := numbered(1, 3*fileIDs)
	require.NoError(t, f.write(map[int][]*nodeids.NodeID{0: all}))
	rows, missing, err := f.read(quiet, removal)
	require.NoError(t, err)
	require.Equal(t, all, rows)
	require.ElementsMatch(t, []int{0, 1, 2, 3}, missing)

	moved := []*nodeids.NodeID{{ID: fileIDs, Name: "another"}} // the next run was killed before it wrote the first file
	require.NoError(t, f.write(map[int][]*nodeids.NodeID{1: moved}))
	rows, missing, err = f.read(quiet, removal)
	require.NoError(t, err)
	require.Equal(t, slices.Concat(all[:fileIDs-1], moved, all[2*fileIDs-1:]), rows)
	require.ElementsMatch(t, []int{0, 2, 3}, missing)
}

func TestFiles_DamagedFilesAreQuarantined(t *testing.T) {
	t.Parallel()
	for what, damaged := range map[string]struct {
		name string
		rows []*nodeids.NodeID
	}{
		"an id twice":                  {fileName, []*nodeids.NodeID{{ID: 1, Name: "a"}, {ID: 1, Name: "b"}}},
		"a name twice":                 {fileName, []*nodeids.NodeID{{ID: 1, Name: "a"}, {ID: 2, Name: "a"}}},
		"no id":                        {fileName, []*nodeids.NodeID{{Name: "a"}}},
		"an id too large":              {fileName, []*nodeids.NodeID{{ID: nodeids.Max + 1, Name: "a"}}},
		"no row":                       {fileName, []*nodeids.NodeID{nil}},
		"an id of another file":        {nameOf(2), numbered(1, 1)},
		"another name":                 {"ids-one.json", nil},
		"the first file by its number": {"ids-0.json", numbered(1, 1)},
		"a number too large":           {nameOf(numberOf(nodeids.Max) + 1), nil},
	} {
		dir := t.TempDir()
		f := newFiles(agentconfig.Agent{StateDir: dir})
		require.NoError(t, f.store.Open())
		good := numbered(fileIDs, fileIDs+5)
		require.NoError(t, f.write(map[int][]*nodeids.NodeID{1: good}), what)
		require.NoError(t, f.store.Write(damaged.name, damaged.rows), what)
		rows, missing, err := f.read(quiet, removal)
		require.NoError(t, err, what)
		require.Equal(t, good, rows, what)
		require.Empty(t, missing, what)
		require.NoFileExists(t, filepath.Join(dir, "nodes", damaged.name), what)
		require.NoError(t, f.write(map[int][]*nodeids.NodeID{0: nil}), "the next file replaces it")
		_, err = os.Stat(filepath.Join(dir, "nodes", fileName))
		require.NoError(t, err, what)
	}
}
