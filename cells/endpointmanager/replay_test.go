package endpointmanager

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/settings"
)

func enqueue(t *testing.T, dir, container string) {
	t.Helper()
	q, err := deletequeue.Open(t.Context(), filepath.Join(dir, "deleteQueue"))
	require.NoError(t, err)
	require.NoError(t, q.Enqueue(deletequeue.Entry{ContainerID: container}))
	require.NoError(t, q.Close())
}

func TestReplay_DeletesWhatWasQueuedAndHoldsTheLockUntilReleased(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	earlierRun(t, dir, 2)
	enqueue(t, dir, "container-1")
	enqueue(t, dir, "container-that-never-was")
	r := started(t, dir)
	replay := newReplay(r.log, settings.Agent{StateDir: dir}, r.manager)
	require.True(t, replay.run(t.Context()))
	require.Len(t, r.rows(), 1)
	require.Equal(t, "container-2", r.rows()[0].ContainerID)

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := deletequeue.Open(short, replay.dir)
	require.ErrorIs(t, err, context.DeadlineExceeded, "no plugin may queue before the socket listens")
	replay.Release()
	replay.Release()
	q, err := deletequeue.Open(t.Context(), replay.dir)
	require.NoError(t, err)
	require.NoError(t, q.Close())
}

func TestReplay_APluginThatHoldsTheQueueDelaysTheStartOnlyBriefly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	earlierRun(t, dir, 1)
	q, err := deletequeue.Open(t.Context(), filepath.Join(dir, "deleteQueue"))
	require.NoError(t, err)
	r := started(t, dir)
	replay := newReplay(r.log, settings.Agent{StateDir: dir}, r.manager)
	require.False(t, replay.run(t.Context()))
	require.Len(t, r.rows(), 1)

	// The plugin finds no socket, queues and lets go; the job takes it from there and does not keep the lock.
	require.NoError(t, q.Enqueue(deletequeue.Entry{ContainerID: "container-1"}))
	require.NoError(t, q.Close())
	health, _ := cell.NewSimpleHealth()
	require.NoError(t, replay.retry(t.Context(), health))
	r.requireEmpty(t)
	q, err = deletequeue.Open(t.Context(), replay.dir)
	require.NoError(t, err)
	require.NoError(t, q.Close())
}
