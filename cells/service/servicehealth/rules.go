package servicehealth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// staleAfter is how long the datapath may lag behind the row of a frontend, without applying any newer revision of it, before the rules of its Service
// are stale: two periods of 30 s, as in kube-proxy by default.
const staleAfter = time.Minute

// rules tracks the frontends whose rows the datapath has not applied, and since when. A change or another failure of a row does not reset its age; each
// revision that comes into force does, because the datapath then lags by one round of the writer. A row in force may lack a part, such as a
// Maglev table when a map that all nodes fill alike is full: that is no reason to move its clients to another node.
type rules struct {
	db        *statedb.DB
	frontends statedb.Table[*frontends.Frontend]

	mu      sync.Mutex
	pending map[loadbalancer.Address]lag
}

// lag is the lag of the datapath behind the row of a frontend.
type lag struct {
	since   time.Time
	applied uint64 // revisions that were in force at that time
}

func newRules(db *statedb.DB, table statedb.Table[*frontends.Frontend]) *rules {
	return &rules{db: db, frontends: table, pending: map[loadbalancer.Address]lag{}}
}

func registerRules(jobs job.Group, c Config, r *rules) {
	if c.HealthCheckNodePort {
		watchdog.AddRetried(jobs, "follow-frontends", r.run, 100*time.Millisecond, time.Minute)
	}
}

func (r *rules) run(ctx context.Context, health cell.Health) error {
	write := r.db.WriteTxn(r.frontends)
	feed, err := changefeed.Follow(write, r.frontends)
	write.Commit()
	if err != nil {
		return err
	}
	defer feed.Close()
	return loop.Run(ctx, r.db, loop.Options{Tables: []statedb.TableMeta{r.frontends}, Pause: settle}, func(now *loop.Round) error {
		health.OK(fmt.Sprintf("%d frontends are not in force in the datapath", r.note(feed.UpTo(now.Txn, now.Changed))))
		return nil
	})
}

// note applies changes of frontends, and returns the number of pending ones.
func (r *rules) note(list []statedb.Change[*frontends.Frontend]) int {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, change := range list {
		f := change.Object
		if behind, known := r.pending[f.Address]; change.Deleted || f.InForce {
			delete(r.pending, f.Address)
		} else if !known || behind.applied != f.Applied {
			r.pending[f.Address] = lag{now, f.Applied}
		}
	}
	return len(r.pending)
}

// stale reports whether a frontend that load balancers use for a Service has been pending for too long.
func (r *rules) stale(txn statedb.ReadTxn, s *services.Service) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range s.Claims {
		behind, pending := r.pending[a]
		if !pending || time.Since(behind.since) <= staleAfter {
			continue
		}
		if f, _, found := r.frontends.Get(txn, frontends.ByAddress(a)); found && f.Service == s.Name && f.Kind != frontends.ClusterIP && !f.Loopback {
			return true
		}
	}
	return false
}
