package endpointmanager

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

func enqueue(t *testing.T, dir, container string) {
	t.Helper()
	q, err := deletequeue.Open(t.Context(), filepath.Join(dir, "deleteQueue"))
	require.NoError(t, err)
	require.NoError(t, q.Enqueue(deletequeue.Entry{ContainerID: container}))
	require.NoError(t, q.Close())
}

func TestReplay_DeletesQueuedAndHoldsLockUntilReleased(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 2)
	enqueue(t, dir, "container-1")
	enqueue(t, dir, "container-that-never-was")
	r := started(t, dir)
	replay := newReplay(r.log, agentconfig.Agent{StateDir: dir}, r.manager)
	require.NoError(t, replay.run(t.Context()))
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

func TestReplay_QueueLockedByPlugin_DelaysStartBriefly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	q, err := deletequeue.Open(t.Context(), filepath.Join(dir, "deleteQueue"))
	require.NoError(t, err)
	r := started(t, dir)
	replay := newReplay(r.log, agentconfig.Agent{StateDir: dir}, r.manager)
	locked := replay.run(t.Context())
	require.ErrorIs(t, locked, deletequeue.ErrNotLocked)
	require.Len(t, r.rows(), 1)

	// The plugin finds no socket, queues its entry and releases the lock. The job replays the entry and does not keep the lock.
	require.NoError(t, q.Enqueue(deletequeue.Entry{ContainerID: "container-1"}))
	require.NoError(t, q.Close())
	health, _ := cell.NewSimpleHealth()
	require.NoError(t, replay.retry(t.Context(), health, locked))
	r.requireEmpty(t)
	q, err = deletequeue.Open(t.Context(), replay.dir)
	require.NoError(t, err)
	require.NoError(t, q.Close())
}

func TestReplay_LateEntry_KeepsNewerEndpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 2)
	r := started(t, dir)
	row := r.rows()[1]
	entry := deletequeue.Entry{ContainerID: row.ContainerID, IfName: row.IfName, NewestInterface: row.HostIfIndex - 1}
	require.NoError(t, r.manager.removeQueued(entry))
	require.Len(t, r.rows(), 2)
	entry.NewestInterface++
	require.NoError(t, r.manager.removeQueued(entry))
	require.Len(t, r.rows(), 1)
}

// A container is attached again before the entry of its DEL is replayed, and the entry has no interface number.
func TestReplay_LateEntryWithoutNumber_KeepsLiveEndpoint(t *testing.T) {
	t.Parallel()
	for _, entry := range []deletequeue.Entry{{ContainerID: "container-1", IfName: "eth0"}, {ContainerID: "container-1"}} {
		r := started(t, t.TempDir())
		links := &fakeKernel{names: allLinks(), err: os.ErrDeadlineExceeded}
		r.kernel = links
		_, err := r.Create(t.Context(), request(1))
		require.NoError(t, err)
		require.ErrorIs(t, r.manager.removeQueued(entry), os.ErrDeadlineExceeded, "the entry stays")
		require.Len(t, r.rows(), 1)
		links.err = nil
		require.NoError(t, r.manager.removeQueued(entry))
		require.Len(t, r.rows(), 1)

		// The agent did not answer a DEL, which has deleted the link.
		delete(links.names, 1)
		require.NoError(t, r.manager.removeQueued(entry))
		r.requireEmpty(t)
	}
}

// The endpoint's file cannot be removed at first: the entry stays in the queue, and the same agent replays it later.
func TestReplay_FailedEntry_IsRetriedBySameAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	enqueue(t, dir, "container-1")
	r := started(t, dir)
	file := filepath.Join(dir, "endpoints", fileName(r.rows()[0].ID))
	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.MkdirAll(filepath.Join(file, "in the way"), 0o755))
	replay := newReplay(r.log, agentconfig.Agent{StateDir: dir}, r.manager)
	failed := replay.run(t.Context())
	require.ErrorContains(t, failed, "container-1")
	replay.Release()

	require.NoError(t, os.RemoveAll(file))
	require.NoError(t, os.Rename(file+".away", file))
	health, _ := cell.NewSimpleHealth()
	require.NoError(t, replay.retry(t.Context(), health, failed))
	require.Empty(t, r.rows())
	queue, err := filepath.Glob(filepath.Join(dir, "deleteQueue", "*.delete"))
	require.NoError(t, err)
	require.Empty(t, queue)
}

// TestReplay_Retry_IsNoStall: a restart of the agent would not free the queue, so retries are not a stall.
func TestReplay_Retry_IsNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := started(t, dir)
		q, err := deletequeue.Open(t.Context(), filepath.Join(dir, "deleteQueue"))
		require.NoError(t, err)
		replay := newReplay(r.log, agentconfig.Agent{StateDir: dir}, r.manager)
		monitor := watchdog.NewMonitor()
		jobs := watchdog.NewGroup(nil, monitor, cell.FullModuleID{"endpoint-manager"})
		health, _ := cell.NewSimpleHealth()
		done := make(chan error, 1)
		go func() {
			ctx, end := watchdog.Begin(t.Context(), jobs, "replay")
			defer end()
			done <- replay.retry(ctx, health, deletequeue.ErrNotLocked)
		}()
		for range 120 {
			time.Sleep(watchdog.Interval)
			require.Empty(t, monitor.Step(watchdog.Interval, r.db.ReadTxn()))
		}
		require.NoError(t, q.Close())
		require.NoError(t, <-done)
	})
}
