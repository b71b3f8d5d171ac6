package ipmasqagent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/notify"
	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
)

const (
	settle    = 100 * time.Millisecond // after the last change, so that a file that is being written is not taken for a whole one
	unsettled = time.Second            // after the first change, if there are always more
	reread    = 30 * time.Second       // without a change that anybody tells, as where the folder was made anew
	absent    = time.Second            // while nobody can tell
)

// follower keeps the table at what the file says.
type follower struct {
	params
	newWatcher func() (*fsnotify.Watcher, error)
	events     *fsnotify.Watcher // nil while there is none
}

// run reads the file, and reads it again whenever something in its folder changes: a ConfigMap is replaced by renaming a link beside it.
func (f *follower) run(ctx context.Context, health cell.Health) error {
	defer f.unwatch()
	for {
		heartbeat.Busy(ctx)
		told := f.watch() // before reading, so that no change falls between
		rows, found, err := read(f.Config.Path)
		if err == nil {
			err = f.commit(rows)
		}
		switch {
		case err != nil:
			health.Degraded("the file changes nothing: what was read before stays", err)
		case !found:
			health.OK(fmt.Sprintf("%s is not there: %d prefixes excluded by default", f.Config.Path, len(rows)))
		default:
			health.OK(fmt.Sprintf("%s excludes %d prefixes", f.Config.Path, len(rows)))
		}
		wait := reread
		if !told {
			wait = absent
		}
		heartbeat.IdleFor(ctx, wait+unsettled)
		if !f.changes(ctx, wait) {
			return nil
		}
	}
}

// watch has changes in the file's folder told, and says whether they are: not without a folder, nor where all of
// fs.inotify.max_user_instances is used up.
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

// changes waits for changes and lets them settle, for no longer than d until the first. It tells whether to go on.
func (f *follower) changes(ctx context.Context, d time.Duration) bool {
	if f.events == nil {
		return settled(ctx, nil, nil, d)
	}
	return settled(ctx, f.events.Events, f.events.Errors, d)
}

// settled waits until no event has come for a while, or until there have been events for too long. Errors are events, too, such as that
// some were lost.
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
func (f *follower) commit(rows map[netip.Prefix]tables.IPMasq) error {
	want := maps.Clone(rows)
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	for old := range f.Table.All(txn) {
		if want[old.Prefix] == old {
			delete(want, old.Prefix)
		} else if _, wanted := want[old.Prefix]; !wanted {
			if _, _, err := f.Table.Delete(txn, old); err != nil {
				return fmt.Errorf("delete %s: %w", old.Prefix, err)
			}
		}
	}
	for _, row := range want {
		if _, _, err := f.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert %s: %w", row.Prefix, err)
		}
	}
	f.Complete(txn)
	txn.Commit()
	return nil
}
