package endpointmanager

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
)

const (
	// replayWait is how long the start waits for a plugin that holds the queue. Such a plugin waits for our socket, so
	// waiting long would make two wait for each other.
	replayWait = time.Second
	// replayRetry is how often the queue is tried again after that, in the background.
	replayRetry = 5 * time.Second
)

// replay takes the deletions that came while the agent was away. It implements the API's side of the queue's lock.
type replay struct {
	log     *slog.Logger
	dir     string
	manager *manager

	mu      sync.Mutex // guards release
	release func()     // nil when the lock is not held
}

func newReplay(log *slog.Logger, agent settings.Agent, m *manager) *replay {
	return &replay{log: log, dir: agent.DeleteQueueDir(), manager: m}
}

// registerReplay appends its hook after that of registerRestore: deletions need the restored rows.
func registerReplay(lifecycle cell.Lifecycle, r *replay, jobs job.Group) {
	lifecycle.Append(cell.Hook{
		OnStart: func(ctx cell.HookContext) error {
			if err := r.run(ctx); err != nil {
				r.log.Warn("The deletion queue was not emptied", "directory", r.dir, "error", err)
				heartbeat.Add(jobs, "replay-deletion-queue", func(ctx context.Context, health cell.Health) error {
					return r.retry(ctx, health, err)
				})
			}
			return nil
		},
		OnStop: func(cell.HookContext) error { r.Release(); return nil },
	})
}

// run empties the queue and keeps its lock, also when entries fail, which then stay.
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

// retry goes on until the queue is empty. By then the API's socket listens, so the lock is held only while it works:
// nobody must be kept from the queue for long.
func (r *replay) retry(ctx context.Context, health cell.Health, err error) error {
	for err != nil {
		health.Degraded("deletions wait in the queue", err)
		if heartbeat.Sleep(ctx, replayRetry) != nil {
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
