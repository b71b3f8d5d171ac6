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
	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
)

const (
	settle = 100 * time.Millisecond // after a change, so that a file that is being written is not taken for a whole one
	reread = 30 * time.Second       // without a change that anybody tells, as where the folder was made anew
	absent = time.Second            // while there is no folder to watch
)

// follower keeps the table at what the file says.
type follower struct{ params }

// run reads the file, and reads it again whenever something in its folder changes: a ConfigMap is replaced by renaming a link beside it.
func (f *follower) run(ctx context.Context, health cell.Health) error {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the configuration of the ip-masq-agent: %w", err)
	}
	defer events.Close()
	for {
		heartbeat.Busy(ctx)
		watching := events.Add(filepath.Dir(f.Config.Path)) // before reading, so that no change falls between
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
		if watching != nil {
			wait = absent
		}
		heartbeat.IdleFor(ctx, wait)
		if !changes(ctx, events, wait) {
			return nil
		}
	}
}

// changes waits for a change and lets it settle, for no longer than d until the first. It tells whether to go on.
func changes(ctx context.Context, events *fsnotify.Watcher, d time.Duration) bool {
	until := time.NewTimer(d)
	defer until.Stop()
	told := func() { // the file is read soon after the first change; what comes later is told again
		if d != settle {
			d = settle
			until.Reset(settle)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-until.C:
			return true
		case <-events.Errors: // such as events that were lost
			told()
		case <-events.Events:
			told()
		}
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
