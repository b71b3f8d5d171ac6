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

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// interval is the minimum time between two deletions: the first link is deleted at once, following ones together.
	interval = 100 * time.Millisecond
	// retryMin and retryMax limit the pause after a failed deletion.
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
	watchdog.Add(jobs, "empty-group", r.run)
}

func (r *reaper) run(ctx context.Context, health cell.Health) error {
	backoff := job.ExponentialBackoff{Min: retryMin, Max: retryMax}
	deleted := 0
	return loop.Run(ctx, r.db, loop.Options{Tables: []statedb.TableMeta{r.devices}, Pause: interval}, func(now *loop.Round) error {
		var waiting []int
		for d := range loop.All(now, r.devices) {
			if d.Group == podlink.DeletedGroup {
				waiting = append(waiting, d.Index)
			}
		}
		var err error
		if len(waiting) > 0 {
			var n int
			n, err = r.reap(waiting)
			deleted += n
			if err != nil {
				health.Degraded("links of deleted pods remain", err)
				now.Within(backoff.Wait())
			} else {
				backoff = job.ExponentialBackoff{Min: retryMin, Max: retryMax}
			}
			r.log.Debug("Deleted links of deleted pods", "count", n, "error", err)
		}
		if err == nil {
			health.OK(fmt.Sprintf("no link of a deleted pod remains (%d deleted)", deleted))
		}
		return nil
	})
}

// errForeign means that the group contains a link that the plugin has not created.
var errForeign = errors.New("foreign, but in the group of deleted links: move it to another group")

// reap deletes the members that the plugin has created, and returns their number. It reads them from the kernel, because the table may lag behind. For a single
// link it reads only that link, because the time to list all links grows with the number of pods.
func (r *reaper) reap(waiting []int) (int, error) {
	list := r.kernel.Members
	if len(waiting) == 1 {
		list = func(group uint32) ([]member, error) { return r.kernel.Member(group, waiting[0]) }
	}
	members, err := list(podlink.DeletedGroup)
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
	if len(foreign) == 0 && len(waiting) > 1 {
		if err := r.kernel.DeleteGroup(podlink.DeletedGroup); err != nil {
			return 0, fmt.Errorf("delete %d links by their group: %w", len(own), err)
		}
		return len(own), nil
	}
	var errs []error
	if len(foreign) > 0 {
		errs = append(errs, fmt.Errorf("link %s: %w", strings.Join(foreign, ", "), errForeign))
	}
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
