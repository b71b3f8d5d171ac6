package ipmasqagent

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	settle    = 100 * time.Millisecond // after the last change, so that a partly written file is not read
	unsettled = time.Second            // after the first change, even if more changes follow
	reread    = 30 * time.Second       // interval without a notification, which is lost if the folder was replaced
	absent    = time.Second            // interval while there are no notifications
)

// follower updates the table when the file changes.
type follower struct {
	params
	newWatcher func() (*fsnotify.Watcher, error)
	events     *fsnotify.Watcher // nil without inotify
}

// run reads the file at the start, after each change in its folder, and at an interval. It watches the folder because a ConfigMap is replaced by the
// rename of a link beside the file.
func (f *follower) run(ctx context.Context, health cell.Health) error {
	defer f.unwatch()
	for {
		watchdog.Busy(ctx)
		watched := f.watch() // before reading, so that no change is missed
		rows, found, err := read(f.Config.Path)
		if err == nil {
			err = f.commit(rows)
		}
		switch {
		case err != nil:
			health.Degraded("the file is not applied: the previous prefixes stay in effect", err)
		case !found:
			health.OK(fmt.Sprintf("%s does not exist: %d prefixes excluded by default", f.Config.Path, len(rows)))
		default:
			health.OK(fmt.Sprintf("%s excludes %d prefixes", f.Config.Path, len(rows)))
		}
		wait := reread
		if !watched {
			wait = absent
		}
		watchdog.IdleFor(ctx, wait+unsettled)
		if !f.changes(ctx, wait) {
			return nil
		}
	}
}

// watch watches the folder of the file, and reports whether changes are notified. They are not if the folder does not exist or all of
// fs.inotify.max_user_instances is in use.
func (f *follower) watch() bool {
	if f.events == nil {
		events, err := f.newWatcher()
		if err != nil {
			return false
		}
		f.events = events
	}
	return f.events.Add(filepath.Dir(f.Config.Path)) == nil
}

func (f *follower) unwatch() {
	notify.Close(f.events)
	f.events = nil
}

// changes waits for the first change, for at most d, and then until the changes have settled. It returns false when ctx ends.
func (f *follower) changes(ctx context.Context, d time.Duration) bool {
	if f.events == nil {
		return settled(ctx, nil, nil, d)
	}
	return settled(ctx, f.events.Events, f.events.Errors, d)
}

// settled waits at most d for the first event, then until no event has arrived for settle, but at most for unsettled. Errors, such as lost events,
// count as events. It returns false when ctx ends.
func settled(ctx context.Context, events <-chan fsnotify.Event, errors <-chan error, d time.Duration) bool {
	due := time.NewTimer(d)
	defer due.Stop()
	var latest time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due.C:
			return true
		case <-errors:
		case <-events:
		}
		if latest.IsZero() {
			latest = time.Now().Add(unsettled)
		}
		due.Reset(min(settle, time.Until(latest)))
	}
}

// commit writes the rows that differ.
func (f *follower) commit(want map[netip.Prefix]masquerade.IPMasq) error {
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	prefix := func(row masquerade.IPMasq) netip.Prefix { return row.Prefix }
	if err := rows.Replace(txn, f.Table, f.Table.All(txn), want, prefix, rows.Identical); err != nil {
		return err
	}
	f.Complete(txn)
	txn.Commit()
	return nil
}
