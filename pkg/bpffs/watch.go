package bpffs

import (
	"context"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
)

// Watch tells when somebody takes pins out of a directory.
type Watch struct {
	dir     string
	watcher *fsnotify.Watcher // nil until the first call, and after the directory went
}

// NewWatch does nothing yet.
func NewWatch(dir string) *Watch { return &Watch{dir: dir} }

// Next waits until something was removed from the directory or renamed, by whomever, or until the directory itself was; it
// makes the directory when it is not there. When ctx ends the watch ends as well.
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
		case <-w.watcher.Errors: // an overrun: anything may have gone
			return nil
		}
	}
}

// open begins to watch, and tells whether the directory had to be made.
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
