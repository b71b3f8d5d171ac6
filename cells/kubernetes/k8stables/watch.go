package k8stables

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
)

// watcher wakes its caller when a directory may have changed, and also when the directory appears, is removed or is replaced. It watches the
// directory and its nearest existing parent. When the inode of either changes, it creates the watches again.
type watcher struct {
	dir    string
	notify *fsnotify.Watcher // nil before the first arm
	parent string            // the watched parent
	armed  [2]inode          // inodes of parent and dir
}

type inode struct{ dev, ino uint64 }

// arm sets the watches. The caller must call it before reading, so that a change after the reading is noticed.
func (w *watcher) arm() error {
	parent := filepath.Dir(w.dir)
	for inodeOf(parent) == (inode{}) && parent != filepath.Dir(parent) {
		parent = filepath.Dir(parent)
	}
	now := [2]inode{inodeOf(parent), inodeOf(w.dir)}
	if w.notify != nil && w.parent == parent && w.armed == now {
		return nil
	}
	w.close()
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.dir, err)
	}
	w.notify, w.parent, w.armed = watch, parent, now
	if err := watch.Add(parent); err != nil {
		w.close()
		return fmt.Errorf("watch %s: %w", parent, err)
	}
	if now[1] == (inode{}) {
		return nil
	}
	if err := watch.Add(w.dir); err != nil {
		w.close()
		return fmt.Errorf("watch %s: %w", w.dir, err)
	}
	return nil
}

func (w *watcher) close() {
	notify.Close(w.notify)
	w.notify = nil
}

// inodeOf returns the inode of a path; zero if the path cannot be read.
func inodeOf(path string) inode {
	info, err := os.Stat(path)
	if err != nil {
		return inode{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}
	}
	return inode{stat.Dev, stat.Ino}
}

// wait returns after a possible change, or after longest. It returns false when ctx ends.
func (w *watcher) wait(ctx context.Context, longest time.Duration) bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-errs: // events were lost: read again
			return true
		case event := <-events:
			if w.concerns(event.Name) {
				return w.settle(ctx, events)
			}
		}
	}
}

// concerns reports whether an event is about the directory, a file in it, or one of its parents. A watched parent may have many unrelated events.
func (w *watcher) concerns(name string) bool {
	if filepath.Dir(name) == w.dir {
		return true
	}
	relative, err := filepath.Rel(name, w.dir)
	return err == nil && filepath.IsLocal(relative)
}

// settleTime is the debounce interval after the first event: a file is often written in several steps.
const settleTime = 10 * time.Millisecond

func (w *watcher) settle(ctx context.Context, events chan fsnotify.Event) bool {
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-events:
		case <-timer.C:
			return true
		}
	}
}
