package bpffs

import (
	"context"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
)

// Watch detects removals of pins from a directory by any process.
type Watch struct {
	dir     string
	watcher *fsnotify.Watcher // nil until the first call, and after the removal of the directory
}

// NewWatch returns a watch for dir. It opens nothing.
func NewWatch(dir string) *Watch { return &Watch{dir: dir} }

// Next waits until any process removes or renames an entry of the directory, or the directory itself. If the directory does not exist, Next creates it and
// returns. When ctx ends, Next closes the watch.
func (w *Watch) Next(ctx context.Context) error {
	if w.watcher == nil {
		fresh, err := w.open()
		if err != nil {
			return fmt.Errorf("watch the pins in %s: %w", w.dir, err)
		}
		if fresh {
			return nil
		}
	}
	for {
		select {
		case <-ctx.Done():
			w.close()
			return nil
		case event := <-w.watcher.Events:
			if !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
				continue
			}
			if event.Name == w.dir {
				w.close()
			}
			return nil
		case <-w.watcher.Errors: // an overrun: any entry may be removed
			return nil
		}
	}
}

// open starts to watch the directory, and reports whether it had to create it.
func (w *Watch) open() (fresh bool, err error) {
	if _, err := os.Stat(w.dir); os.IsNotExist(err) {
		fresh = true
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return false, err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return false, err
	}
	if err := watcher.Add(w.dir); err != nil {
		notify.Close(watcher)
		return false, err
	}
	w.watcher = watcher
	return fresh, nil
}

func (w *Watch) close() {
	notify.Close(w.watcher)
	w.watcher = nil
}
