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

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// elector takes part in one election.
type elector struct {
	settings
	leases leases
	db     *statedb.DB
	table  statedb.RWTable[leadership.Leadership]
	log    *slog.Logger

	seen  *coordinationv1.Lease // as last read or written; nil before that
	since time.Time             // when seen changed last, by our clock
	row   leadership.Leadership
}

func newElector(s settings, l leases, db *statedb.DB, table statedb.RWTable[leadership.Leadership], log *slog.Logger) *elector {
	return &elector{settings: s, leases: l, db: db, table: table, log: log,
		row: leadership.Leadership{Lease: s.namespace + "/" + leaseName, Identity: s.identity}}
}

// run takes part until ctx ends, and then gives the Lease back.
func (e *elector) run(ctx context.Context, health cell.Health) error {
	for ctx.Err() == nil {
		if err := e.expire(); err != nil {
			return err
		}
		heartbeat.Busy(ctx)
		row := e.round(ctx)
		if ctx.Err() != nil {
			break
		}
		if err := e.publish(row); err != nil {
			return err
		}
		e.report(health)
		heartbeat.IdleFor(ctx, 2*e.period)
		e.wait(ctx)
	}
	return e.release(context.WithoutCancel(ctx))
}

// expire says that our time is over, if it is.
func (e *elector) expire() error {
	row := e.row
	if row.Until.IsZero() || row.Leads(time.Now()) {
		return nil
	}
	row.Until = time.Time{}
	return e.publish(row)
}

// round makes one attempt and says what is known after it. An attempt of a leader ends when its time does.
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
		row.Until = began.Add(e.renew) // from before the request, since the Lease may count from any moment within it
	}
	if leader := e.holder(); leader != row.Leader {
		row.Leader, row.Since = leader, now
	}
	if !row.Leads(now) || row.Leader != e.identity {
		row.Until = time.Time{}
	}
	return row
}

// holder is who had the Lease when it was last seen.
func (e *elector) holder() string {
	if e.seen == nil {
		return ""
	}
	return holder(e.seen)
}

// attempt reads the Lease, and takes or renews it where that is right. A leader does without reading. It says whether the
// Lease was written just now.
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
	case err != nil:
		return false, err
	default:
		e.note(lease)
		if holder(lease) != e.identity && time.Since(e.since) < lasts(lease) {
			return false, nil // somebody else leads, or has just ceased to
		}
		held, err = e.write(ctx, e.leases.update)
	}
	if lost(err) {
		return false, nil // somebody was faster; the next attempt reads who
	}
	return held, err
}

// lost tells that the Lease is not what it was when it was read.
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

// note remembers the Lease, and when it changed.
func (e *elector) note(lease *coordinationv1.Lease) {
	if e.seen == nil || e.seen.ResourceVersion != lease.ResourceVersion || e.seen.UID != lease.UID {
		e.since = time.Now()
	}
	e.seen = lease
}

// publish writes the row, and logs who leads and the first failure of several.
func (e *elector) publish(row leadership.Leadership) error {
	led, leads := !e.row.Until.IsZero(), !row.Until.IsZero()
	if led != leads || row.Leader != e.row.Leader {
		e.log.Info("Leadership", "lease", row.Lease, "leads", leads, "leader", row.Leader, "identity", row.Identity)
	}
	if row.Error != "" && e.row.Error == "" {
		e.log.Warn("The Lease cannot be read or written, and is tried again", "lease", row.Lease, "error", row.Error)
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
		health.Degraded("take or renew the Lease "+e.row.Lease, errors.New(e.row.Error))
	case !e.row.Until.IsZero():
		health.OK("this replica leads")
	case e.row.Leader == "":
		health.OK("nobody leads yet")
	default:
		health.OK(e.row.Leader + " leads")
	}
}

// wait lets a period pass, with jitter so that candidates do not come at the same time. It ends early when the time of the
// leader does.
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

// release ends the leadership and gives the Lease back. Those who worked have stopped by now, since they started later.
func (e *elector) release(ctx context.Context) error {
	led := e.seen != nil && holder(e.seen) == e.identity
	row := e.row
	row.Until = time.Time{}
	if err := e.publish(row); err != nil || !led {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if _, err := e.leases.update(ctx, released(e.seen, time.Now())); err != nil {
		e.log.Info("The Lease could not be given back, others will wait for it to end", "lease", row.Lease, "error", err)
	}
	return nil
}
