package reflectors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// awaitSync waits for the first lists. If required tables are incomplete after the timeout, it ends the agent, unless a copy was loaded or pods of a
// previous run exist: then it reports the incomplete tables until they are complete.
func (s *Source) awaitSync(ctx context.Context, health cell.Health) {
	var late <-chan time.Time
	if s.settings.SyncTimeout > 0 {
		timer := time.NewTimer(s.settings.SyncTimeout)
		defer timer.Stop()
		late = timer.C
	}
	overdue := false
	for {
		missing, changed := s.missing()
		if len(missing) == 0 {
			health.OK("all tables that the node needs are complete")
			return
		}
		if overdue {
			health.Degraded(fmt.Sprintf("%d tables are not complete after %v", len(missing), s.settings.SyncTimeout),
				errors.New(strings.Join(missing, "; ")))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-late:
			overdue = true
			if !s.copied.IsZero() || s.carryOn() {
				continue
			}
			if missing, _ = s.missing(); len(missing) > 0 { // the last table may have become complete at the same time
				s.shutdown.Shutdown(hive.ShutdownWithError(s.tooLate(missing)))
				return
			}
		}
	}
}

func (s *Source) tooLate(missing []string) error {
	return fmt.Errorf("wait for the API server: after --k8s-sync-timeout=%v these tables are not complete, and neither a copy "+
		"of them nor pods of a previous run exist: %s", s.settings.SyncTimeout, strings.Join(missing, "; "))
}

// missing returns the required tables that are incomplete, each with its last error, and a channel that closes when a source changes.
func (s *Source) missing() (out []string, changed <-chan struct{}) {
	rows, changed := s.set.Sources.AllWatch(s.set.DB.ReadTxn())
	for row := range statedb.ToSeq(rows) {
		if !row.Optional && row.State != sources.Synced {
			out = append(out, row.Table+": "+row.WaitingFor)
		}
	}
	return out, changed
}
