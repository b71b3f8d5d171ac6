package endpointmanager

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/deletequeue"
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
			if !r.run(ctx) {
				jobs.Add(job.OneShot("replay-deletion-queue", r.retry))
			}
			return nil
		},
		OnStop: func(cell.HookContext) error { r.Release(); return nil },
	})
}

// run empties the queue and keeps its lock. It says false when the lock could not be had; entries that fail stay.
func (r *replay) run(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, replayWait)
	defer cancel()
	release, err := deletequeue.Replay(ctx, r.dir, func(_ context.Context, e deletequeue.Entry) error {
		return r.manager.removeQueued(e)
	})
	locked := err == nil || ctx.Err() == nil
	if err != nil {
		r.log.Warn("The deletion queue was not emptied", "directory", r.dir, "error", err)
	}
	if !locked {
		release()
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release = release
	return true
}

// retry runs after the start, when the API's socket listens: nobody can be kept from the queue by then.
func (r *replay) retry(ctx context.Context, health cell.Health) error {
	for !r.run(ctx) {
		health.Degraded("deletions wait in the queue: a plugin holds its lock", nil)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(replayRetry):
		}
	}
	r.Release()
	health.OK("the queue is empty")
	return nil
}

// Release implements [endpoint.QueueLock].
func (r *replay) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.release != nil {
		r.release()
		r.release = nil
	}
}
