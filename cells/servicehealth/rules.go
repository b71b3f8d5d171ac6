package servicehealth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// staleAfter is how long a change of a frontend may be missing from the datapath before the rules of its Service are stale: two periods of 30 s, as
// in kube-proxy by default.
const staleAfter = time.Minute

// rules knows the frontends that the datapath does not have as their rows say, and since when. A row that changes or fails again meanwhile
// does not become younger.
type rules struct {
	db        *statedb.DB
	frontends statedb.Table[*frontends.Frontend]

	mu      sync.Mutex
	pending map[loadbalancer.Address]time.Time
}

func newRules(db *statedb.DB, table statedb.Table[*frontends.Frontend]) *rules {
	return &rules{db: db, frontends: table, pending: map[loadbalancer.Address]time.Time{}}
}

func registerRules(jobs job.Group, c Config, r *rules) {
	if c.HealthCheckNodePort {
		heartbeat.AddRetried(jobs, "follow-frontends", r.run, 100*time.Millisecond, time.Minute)
	}
}

func (r *rules) run(ctx context.Context, health cell.Health) error {
	write := r.db.WriteTxn(r.frontends)
	feed, err := changes.Follow(write, r.frontends)
	write.Commit()
	if err != nil {
		return err
	}
	defer feed.Close()
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		txn, changed := heartbeat.Snapshot(ctx, r.db, r.frontends), statedb.NewWatchSet()
		health.OK(fmt.Sprintf("%d frontends are not in the datapath as they should be", r.note(feed.UpTo(txn, changed))))
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// note takes changes of frontends, and returns how many are pending.
func (r *rules) note(list []statedb.Change[*frontends.Frontend]) int {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, change := range list {
		f := change.Object
		if _, known := r.pending[f.Address]; change.Deleted || f.Status.Kind == reconciler.StatusKindDone {
			delete(r.pending, f.Address)
		} else if !known {
			r.pending[f.Address] = now
		}
	}
	return len(r.pending)
}

// stale reports whether a frontend by which load balancers reach a Service has been pending for too long.
func (r *rules) stale(txn statedb.ReadTxn, s *services.Service) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range s.Claims {
		since, pending := r.pending[a]
		if !pending || time.Since(since) <= staleAfter {
			continue
		}
		if f, _, found := r.frontends.Get(txn, frontends.ByAddress(a)); found && f.Service == s.Name && f.Kind != frontends.ClusterIP && !f.Loopback {
			return true
		}
	}
	return false
}
