package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// elector is a candidate of one election.
type elector struct {
	settings
	leases leases
	db     *statedb.DB
	table  statedb.RWTable[leadership.Leadership]
	log    *slog.Logger

	seen  *coordinationv1.Lease // last read or written Lease; nil before that
	since time.Time             // time of the last change of seen, by the local clock
	row   leadership.Leadership
}

func newElector(s settings, l leases, db *statedb.DB, table statedb.RWTable[leadership.Leadership], log *slog.Logger) *elector {
	return &elector{settings: s, leases: l, db: db, table: table, log: log,
		row: leadership.Leadership{Lease: s.namespace + "/" + leaseName, Identity: s.identity}}
}

// run participates until ctx ends, and then releases the Lease.
func (e *elector) run(ctx context.Context, health cell.Health) error {
	for ctx.Err() == nil {
		if err := e.expire(); err != nil {
			return err
		}
		watchdog.Busy(ctx)
		row := e.round(ctx)
		if ctx.Err() != nil {
			break
		}
		if err := e.publish(row); err != nil {
			return err
		}
		e.report(health)
		watchdog.IdleFor(ctx, 2*e.period)
		e.wait(ctx)
	}
	return e.release(context.WithoutCancel(ctx))
}

// expire publishes the end of the leadership if its time has passed.
func (e *elector) expire() error {
	row := e.row
	if row.Until.IsZero() || row.Leads(time.Now()) {
		return nil
	}
	row.Until = time.Time{}
	return e.publish(row)
}

// round runs one attempt and returns the resulting row. The deadline of a leader's attempt is the end of its leadership.
func (e *elector) round(ctx context.Context) leadership.Leadership {
	row, began := e.row, time.Now()
	limit := began.Add(e.renew)
	if !row.Until.IsZero() {
		limit = row.Until
	}
	attempt, cancel := context.WithDeadline(ctx, limit)
	held, err := e.attempt(attempt)
	cancel()

	now := time.Now()
	row.Error = ""
	if err != nil {
		row.Error = err.Error()
	}
	if held {
		row.Until = began.Add(e.renew) // counted from before the request, because the Lease may count from any time during it
	}
	if leader := e.holder(); leader != row.Leader {
		row.Leader, row.Since = leader, now
	}
	if !row.Leads(now) || row.Leader != e.identity {
		row.Until = time.Time{}
	}
	return row
}

// holder returns the identity of the last observed holder of the Lease.
func (e *elector) holder() string {
	if e.seen == nil {
		return ""
	}
	return holderOf(e.seen)
}

// attempt reads the Lease, and takes or renews it if allowed. A leader renews without reading. It reports whether this attempt wrote
// the Lease.
func (e *elector) attempt(ctx context.Context) (held bool, err error) {
	if e.holder() == e.identity {
		held, err = e.write(ctx, e.leases.update)
		if !lost(err) {
			return held, err
		}
	}
	lease, err := e.leases.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		e.note(&coordinationv1.Lease{})
		held, err = e.write(ctx, e.leases.create)
		if apierrors.IsNotFound(err) {
			return false, fmt.Errorf("create the Lease: namespace %s does not exist: create the namespace, or correct --leader-election-namespace", e.namespace)
		}
	case err != nil:
		return false, err
	default:
		e.note(lease)
		if holderOf(lease) != e.identity && time.Since(e.since) < lasts(lease) {
			return false, nil // another replica leads, or has just stopped
		}
		held, err = e.write(ctx, e.leases.update)
	}
	if lost(err) {
		return false, nil // another replica was faster; the next attempt reads the Lease
	}
	return held, err
}

// lost reports whether an error means that the Lease has changed since it was read.
func lost(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// write takes or renews the Lease.
func (e *elector) write(ctx context.Context, how func(context.Context, *coordinationv1.Lease) (*coordinationv1.Lease, error)) (bool, error) {
	lease, err := how(ctx, taken(e.seen, e.identity, e.lease, time.Now()))
	if err != nil {
		return false, err
	}
	e.note(lease)
	return true, nil
}

// note records the Lease and the time of its change.
func (e *elector) note(lease *coordinationv1.Lease) {
	if e.seen == nil || e.seen.ResourceVersion != lease.ResourceVersion || e.seen.UID != lease.UID {
		e.since = time.Now()
	}
	e.seen = lease
}

// publish writes the row, and logs changes of the leader and the first of consecutive failures.
func (e *elector) publish(row leadership.Leadership) error {
	led, leads := !e.row.Until.IsZero(), !row.Until.IsZero()
	if led != leads || row.Leader != e.row.Leader {
		e.log.Info("Leadership", "lease", row.Lease, "leads", leads, "leader", row.Leader, "identity", row.Identity)
	}
	if row.Error != "" && e.row.Error == "" {
		e.log.Warn("The Lease cannot be read or written, and is retried", "lease", row.Lease, "error", row.Error)
	}
	e.row = row
	txn := e.db.WriteTxn(e.table)
	defer txn.Abort()
	if _, _, err := e.table.Insert(txn, row); err != nil {
		return fmt.Errorf("insert leadership of %s: %w", row.Lease, err)
	}
	txn.Commit()
	return nil
}

func (e *elector) report(health cell.Health) {
	switch {
	case e.row.Error != "":
		health.Degraded("acquire or renew the Lease "+e.row.Lease, errors.New(e.row.Error))
	case !e.row.Until.IsZero():
		health.OK("this replica leads")
	case e.row.Leader == "":
		health.OK("no replica leads yet")
	default:
		health.OK(e.row.Leader + " leads")
	}
}

// wait sleeps for a period, with jitter so that candidates do not send requests at the same time. It returns early when the leadership
// expires.
func (e *elector) wait(ctx context.Context) {
	pause := e.period + rand.N(e.period/5+1)
	if !e.row.Until.IsZero() {
		pause = min(pause, max(time.Until(e.row.Until), 0))
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// releaseTimeout leaves time for other stop hooks.
const releaseTimeout = 2 * time.Second

// release ends the leadership and releases the Lease. The cells that work as leader have stopped by now, because they started later.
func (e *elector) release(ctx context.Context) error {
	led := e.seen != nil && holderOf(e.seen) == e.identity
	row := e.row
	row.Until = time.Time{}
	if err := e.publish(row); err != nil || !led {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if _, err := e.leases.update(ctx, released(e.seen, time.Now())); err != nil {
		e.log.Info("The Lease could not be released, other replicas wait until it expires", "lease", row.Lease, "error", err)
	}
	return nil
}
