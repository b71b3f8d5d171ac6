package driftledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// conflictThreshold is the number of consecutive repairs from which on a conflict with another writer is likely.
	conflictThreshold = 10
	// maxNamed is the maximum number of such objects in a health message.
	maxNamed = 5
	// settle is the minimum time between two scans of the table.
	settle = time.Second
)

// registerConflicts logs repairs and reports objects that are repaired repeatedly.
func registerConflicts(jobs job.Group, db *statedb.DB, table statedb.RWTable[driftrepairs.Repair], log *slog.Logger) {
	watchdog.Add(jobs, "watch-repairs", func(ctx context.Context, health cell.Health) error {
		logged := uint64(0)
		options := loop.Options{Tables: []statedb.TableMeta{table}, Pause: settle}
		return loop.Run(ctx, db, options, func(r *loop.Round) error {
			total, newest, conflicts := sum(loop.All(r, table.ToTable()), time.Now())
			if total > logged {
				log.Warn("Another program changed an object of the agent, which repairs it", "kind", newest.Kind, "object", newest.What,
					"found", newest.Found, "repairs", total)
				logged = total
			}
			report(health, total, conflicts)
			if len(conflicts) > 0 {
				r.Within(inARow / 6) // no row announces the end of a conflict
			}
			return nil
		})
	})
}

// sum adds the counts, and returns the newest repair and the objects in conflict with another writer.
func sum(rows func(func(driftrepairs.Repair, statedb.Revision) bool), now time.Time) (total uint64, newest driftrepairs.Repair, conflicts []error) {
	for row := range rows {
		total += row.Count
		if row.Last.After(newest.Last) {
			newest = row
		}
		if row.Row >= conflictThreshold && now.Sub(row.Last) <= inARow {
			if len(conflicts) < maxNamed {
				conflicts = append(conflicts, fmt.Errorf("%s %s: repaired %d times in a row, the last time because: %s",
					row.Kind, row.What, row.Row, row.Found))
			}
		}
	}
	return total, newest, conflicts
}

// report writes the count in brackets: health does not treat a change inside brackets as news.
func report(health cell.Health, total uint64, conflicts []error) {
	if len(conflicts) > 0 {
		health.Degraded("another program changes objects of the agent repeatedly: find and stop it", errors.Join(conflicts...))
		return
	}
	health.OK(fmt.Sprintf("no repair conflicts (%d repairs)", total))
}
