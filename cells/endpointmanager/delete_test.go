package endpointmanager

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/endpoint"
)

// Whatever fails, the rest of the endpoint goes, and asking again succeeds.
func TestDelete_FileThatCannotBeRemovedIsReportedAndTheRestGoes(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	file := filepath.Join(r.files.Dir(), "1.json")
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.MkdirAll(filepath.Join(file, "not-empty"), 0o700))

	n, err := r.DeleteContainer(t.Context(), "container-1")
	require.Equal(t, 1, n)
	require.ErrorContains(t, err, "1.json")
	require.Empty(t, r.rows())
	require.Zero(t, r.addresses.count())
	n, err = r.DeleteContainer(t.Context(), "container-1")
	require.NoError(t, err)
	require.Zero(t, n)
}

// The runtime asks again because the first answer was an error; by then the file can be removed, and a restart finds nothing.
func TestDelete_AskedAgainRemovesTheFileThatWasLeft(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	file := filepath.Join(r.files.Dir(), "1.json")
	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.MkdirAll(filepath.Join(file, "in the way"), 0o700))
	const id = "cni-attachment-id:container-1:eth0"
	require.ErrorContains(t, r.Delete(t.Context(), id), "1.json")

	require.NoError(t, os.RemoveAll(file))
	require.NoError(t, os.Rename(file+".away", file))
	require.ErrorIs(t, r.Delete(t.Context(), id), endpoint.ErrNotFound)
	require.NoFileExists(t, file)
}

func TestDeleteContainer_RemovesEachOfItsInterfaces(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	for n := 1; n <= 3; n++ {
		q := request(n)
		q.ContainerID, q.IfName = "shared", "eth"+strconv.Itoa(n)
		_, err := r.Create(t.Context(), q)
		require.NoError(t, err)
	}
	require.NoError(t, r.Delete(t.Context(), "cni-attachment-id:shared:eth2"))
	n, err := r.DeleteContainer(t.Context(), "shared")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	r.requireEmpty(t)
}

// BenchmarkCreateAndDelete is what this cell costs an ADD and a DEL, with 250 endpoints.
func BenchmarkCreateAndDelete(b *testing.B) {
	dir := b.TempDir()
	earlierRun(b, dir, 250)
	r := started(b, dir)
	q := request(300)
	for b.Loop() {
		_, err := r.Create(b.Context(), q)
		require.NoError(b, err)
		_, err = r.DeleteContainer(b.Context(), q.ContainerID)
		require.NoError(b, err)
	}
}
