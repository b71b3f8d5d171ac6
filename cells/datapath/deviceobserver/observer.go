package deviceobserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// settle is the minimum time between two commits. The first change after a pause is committed at once.
	settle = 10 * time.Millisecond
	// quiet is how long notifications must pause before the observer lists routes again, so that it applies none from before the list
	// after it.
	quiet = 30 * time.Millisecond
	// quietTimeout is the timeout of the wait for such a pause. Continuous changes would never allow one.
	quietTimeout = 300 * time.Millisecond
	// verify is the interval of full lists, which repair changes that the kernel did not announce.
	verify = time.Minute
	// maxBatch limits one transaction.
	maxBatch = 1000
)

// observer mirrors the kernel into the store.
type observer struct {
	kernel kernel
	store  *store
	log    *slog.Logger
	health cell.Health
}

func registerObserver(jobs job.Group, k kernel, s *store, log *slog.Logger) {
	o := &observer{kernel: k, store: s, log: log}
	watchdog.Add(jobs, "mirror-kernel", o.run)
}

// run follows the kernel until the context ends, and starts again after a failure.
func (o *observer) run(ctx context.Context, health cell.Health) error {
	o.health = health
	backoff := &job.ExponentialBackoff{Min: 20 * time.Millisecond, Max: 5 * time.Second}
	for {
		begun := time.Now()
		err := o.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		health.Degraded("starting again from the list", err)
		o.log.Warn("Observation of the network interrupted, starting again from the list", "error", err)
		if time.Since(begun) > verify {
			backoff = &job.ExponentialBackoff{Min: 20 * time.Millisecond, Max: 5 * time.Second}
		}
		if watchdog.Sleep(ctx, backoff.Wait()) != nil {
			return nil
		}
	}
}

// errLost means that the kernel dropped notifications because the agent did not read them in time.
var errLost = errors.New("notifications of the kernel were lost")

func lost(cause error) error {
	if cause == nil {
		return errLost
	}
	return fmt.Errorf("%w: %w", errLost, cause)
}

// follow subscribes, lists, then applies changes. It returns when the subscription ends.
func (o *observer) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f, err := o.kernel.Subscribe(ctx)
	if err != nil {
		return err
	}
	// The feed's goroutines wait for a reader until its channel is closed.
	defer func() {
		cancel()
		for range f.Changes() {
		}
	}()
	if err := o.list(); err != nil {
		return err
	}
	full, relist := time.NewTicker(verify), time.NewTimer(quiet)
	defer full.Stop()
	relist.Stop()
	defer relist.Stop()
	var wanted, committed time.Time // time of the request for a list of routes, zero without one; time of the last commit
	for {
		watchdog.IdleFor(ctx, verify)
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-f.Changes():
			watchdog.Busy(ctx)
			if !ok {
				return lost(f.Err())
			}
			changes := gather(ctx, f, c, settle-time.Since(committed))
			again, err := o.apply(changes)
			if err != nil {
				return err
			}
			committed = time.Now()
			if again && wanted.IsZero() {
				wanted = committed
			}
			if !wanted.IsZero() {
				relist.Reset(max(0, min(quiet, quietTimeout-time.Since(wanted))))
			}
		case <-relist.C:
			watchdog.Busy(ctx)
			wanted = time.Time{}
			if err := o.listRoutes(); err != nil {
				return err
			}
		case <-full.C:
			watchdog.Busy(ctx)
			if err := o.list(); err != nil {
				return err
			}
		}
	}
}

// gather collects the changes that arrive within wait, starting with first. Without a wait it returns the queued changes.
func gather(ctx context.Context, f feed, first change, wait time.Duration) []change {
	changes := []change{first}
	deadline := time.After(max(wait, 0))
	for len(changes) < maxBatch {
		select {
		case c, ok := <-f.Changes():
			if !ok {
				return changes // the caller finds the closed channel again
			}
			changes = append(changes, c)
			continue
		default:
		}
		if wait <= 0 {
			return changes
		}
		select {
		case c, ok := <-f.Changes():
			if !ok {
				return changes
			}
			changes = append(changes, c)
		case <-deadline:
			return changes
		case <-ctx.Done():
			return changes
		}
	}
	return changes
}

func (o *observer) apply(changes []change) (relist bool, err error) {
	b := o.store.begin()
	defer b.txn.Abort()
	for _, c := range changes {
		b.apply(c)
	}
	return b.commit()
}

// list reads the whole state and makes the tables equal to it.
func (o *observer) list() error {
	all, err := o.kernel.List()
	if err != nil {
		return err
	}
	b := o.store.begin()
	defer b.txn.Abort()
	b.replaceAll(all)
	b.complete(b.txn)
	if _, err := b.commit(); err != nil {
		return err
	}
	o.health.OK("following the notifications of the kernel")
	return nil
}

func (o *observer) listRoutes() error {
	routes, err := o.kernel.Routes()
	if err != nil {
		return err
	}
	b := o.store.begin()
	defer b.txn.Abort()
	b.replaceRoutes(routes)
	_, err = b.commit()
	return err
}
