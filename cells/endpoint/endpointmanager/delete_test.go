package endpointmanager

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
)

// If one step fails, the other parts of the endpoint are removed, and a second request succeeds.
func TestDelete_FileNotRemovable_ReportsAndRemovesRest(t *testing.T) {
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

// No second request follows, because the endpoint has no row: the agent removes the file itself as soon as possible.
func TestDelete_LeftoverFile_RemovedWithoutRequest(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	file := filepath.Join(r.files.Dir(), "1.json")
	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.MkdirAll(filepath.Join(file, "in the way"), 0o700))
	require.ErrorContains(t, r.Delete(t.Context(), "cni-attachment-id:container-1:eth0"), "1.json")

	require.NoError(t, os.RemoveAll(file))
	require.NoError(t, os.Rename(file+".away", file))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	health, _ := cell.NewSimpleHealth()
	go func() { done <- r.followLeftFiles(ctx, health) }()
	require.Eventually(t, func() bool { _, err := os.Stat(file); return os.IsNotExist(err) }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestDeleteContainer_RemovesAllInterfaces(t *testing.T) {
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

// BenchmarkCreateAndDelete measures the share of this cell in an ADD and a DEL, with 250 endpoints.
func BenchmarkCreateAndDelete(b *testing.B) {
	dir := b.TempDir()
	writePreviousRun(b, dir, 250)
	r := started(b, dir)
	q := request(300)
	for b.Loop() {
		_, err := r.Create(b.Context(), q)
		require.NoError(b, err)
		_, err = r.DeleteContainer(b.Context(), q.ContainerID)
		require.NoError(b, err)
	}
}
