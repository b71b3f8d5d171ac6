package endpointmanager

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// replayWait is the time that the start waits for a plugin that holds the queue. The plugin waits for the agent's socket, so a long wait would delay both.
	replayWait = time.Second
	// replayRetry is the interval of further attempts in the background.
	replayRetry = 5 * time.Second
)

// replay replays the deletions that were queued while the agent was down. It implements [endpoint.QueueLock].
type replay struct {
	log     *slog.Logger
	dir     string
	manager *manager

	mu      sync.Mutex // guards release
	release func()     // nil when the lock is not held
}

func newReplay(log *slog.Logger, agent agentconfig.Agent, m *manager) *replay {
	return &replay{log: log, dir: agent.DeleteQueueDir(), manager: m}
}

// registerReplay must be called after registerRestore: deletions need the restored rows.
func registerReplay(lifecycle cell.Lifecycle, r *replay, jobs job.Group) {
	lifecycle.Append(cell.Hook{
		OnStart: func(ctx cell.HookContext) error {
			if err := r.run(ctx); err != nil {
				r.log.Warn("The deletion queue was not emptied", "directory", r.dir, "error", err)
				watchdog.Add(jobs, "replay-deletion-queue", func(ctx context.Context, health cell.Health) error {
					return r.retry(ctx, health, err)
				})
			}
			return nil
		},
		OnStop: func(cell.HookContext) error { r.Release(); return nil },
	})
}

// run replays the queue and keeps its lock. Entries that fail stay in the queue.
func (r *replay) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayWait)
	defer cancel()
	release, err := deletequeue.Replay(ctx, r.dir, func(_ context.Context, e deletequeue.Entry) error {
		return r.manager.removeQueued(e)
	})
	if errors.Is(err, deletequeue.ErrNotLocked) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release = release
	return err
}

// retry replays the queue until it is empty. The API's socket listens by then, so the lock is held only during an attempt and plugins are not blocked for long.
func (r *replay) retry(ctx context.Context, health cell.Health, err error) error {
	for err != nil {
		health.Degraded("deletions wait in the queue", err)
		if watchdog.Sleep(ctx, replayRetry) != nil {
			return nil
		}
		err = r.run(ctx)
		r.Release()
	}
	health.OK("the queue is empty")
	return nil
}

// Release implements [endpoint.QueueLock].
func (r *replay) Release() {
	r.mu.Lock()
	release := r.release
	r.release = nil
	r.mu.Unlock()
	if release != nil {
		release()
	}
}
