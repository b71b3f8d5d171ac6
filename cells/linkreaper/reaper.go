package linkreaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

const (
	// interval is the least time between two deletions: the first link goes at once, those that follow go together.
	interval = 100 * time.Millisecond
	// retryMin and retryMax bound the pause after a deletion that failed.
	retryMin, retryMax = 100 * time.Millisecond, 30 * time.Second
)

type reaper struct {
	db      *statedb.DB
	devices statedb.Table[*devices.Device]
	kernel  kernel
	log     *slog.Logger
}

func registerReaper(jobs job.Group, db *statedb.DB, links statedb.Table[*devices.Device], k kernel, log *slog.Logger) {
	r := &reaper{db: db, devices: links, kernel: k, log: log}
	heartbeat.Add(jobs, "empty-group", r.run)
}

func (r *reaper) run(ctx context.Context, health cell.Health) error {
	limiter := rate.NewLimiter(rate.Every(interval), 1)
	backoff := job.ExponentialBackoff{Min: retryMin, Max: retryMax}
	deleted := 0
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, r.db, r.devices)
		rows, changed := r.devices.AllWatch(txn)
		waiting := false
		for d := range rows {
			waiting = waiting || d.Group == podlink.DeletedGroup
		}
		var again <-chan time.Time
		if waiting {
			n, err := r.reap()
			deleted += n
			if err != nil {
				health.Degraded("links of deleted pods remain", err)
				again = time.After(backoff.Wait())
			} else {
				backoff = job.ExponentialBackoff{Min: retryMin, Max: retryMax}
			}
			r.log.Debug("Deleted links of pods that are gone", "count", n, "error", err)
		}
		if again == nil {
			health.OK(fmt.Sprintf("No link is left over (%d deleted)", deleted))
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
	return nil
}

// errForeign means that somebody put a link of theirs into our group.
var errForeign = errors.New("not made by the plugin, but in the group of deleted links: give it another group")

// reap deletes the members that are ours and says how many they were. The kernel is asked and not the table, which may
// lag behind it.
func (r *reaper) reap() (int, error) {
	members, err := r.kernel.Members(podlink.DeletedGroup)
	if err != nil || len(members) == 0 {
		return 0, err
	}
	var own []member
	var foreign []string
	for _, m := range members {
		if m.Type == "veth" && podlink.IsHostName(m.Name) {
			own = append(own, m)
		} else {
			foreign = append(foreign, m.Name)
		}
	}
	if len(foreign) == 0 {
		if err := r.kernel.DeleteGroup(podlink.DeletedGroup); err != nil {
			return 0, fmt.Errorf("delete %d links by their group: %w", len(own), err)
		}
		return len(own), nil
	}
	errs := []error{fmt.Errorf("link %s: %w", strings.Join(foreign, ", "), errForeign)}
	n := 0
	for _, m := range own {
		if err := r.kernel.DeleteLink(m.Index); err != nil {
			errs = append(errs, fmt.Errorf("delete link %s: %w", m.Name, err))
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}
