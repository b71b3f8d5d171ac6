package bpffs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
)

var errNotMounted = errors.New("the BPF file system is not mounted: mount it on the directory of --bpf-root (mount -t bpf bpffs DIRECTORY), or restart the agent")

// Watch detects removals of pins from a directory by any process.
type Watch struct {
	dir     string
	isBPF   func(path string) (bool, error) // [Is], except in tests
	lost    bool                            // notifications were lost since Next last returned without an error
	watcher *fsnotify.Watcher               // nil until the first call, and after the removal of the directory or the unmount
}

// NewWatch returns a watch for dir. It opens nothing.
func NewWatch(dir string) *Watch { return &Watch{dir: dir, isBPF: Is} }

// Next waits until any process removes or renames an entry of the directory, or the directory itself, or unmounts its file system. If the directory does not
// exist, Next creates it and returns. While no BPF file system is mounted, Next returns an error; the first call after the mount returns at once, because
// notifications were lost. When ctx ends, Next closes the watch.
func (w *Watch) Next(ctx context.Context) error {
	if w.watcher == nil {
		fresh, err := w.open()
		if err != nil {
			w.lost = true
			return fmt.Errorf("watch the pins in %s: %w", w.dir, err)
		}
		if fresh || w.lost {
			w.lost = false
			return nil
		}
	}
	for {
		select {
		case <-ctx.Done():
			w.close()
			return nil
		case event := <-w.watcher.Events:
			if event.Op == 0 { // IN_UNMOUNT, for which the library has no operation; the kernel has removed the watch
				w.close()
				w.lost = true
				return nil
			}
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
	if err := w.checkMount(); err != nil {
		return false, err
	}
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

// checkMount returns an error if the directory is not in a BPF file system, or would not be once it is created: a directory of another file system would be
// hidden by the next mount.
func (w *Watch) checkMount() error {
	path := w.dir
	is, err := w.isBPF(path)
	for ; errors.Is(err, os.ErrNotExist) && path != filepath.Dir(path); is, err = w.isBPF(path) {
		path = filepath.Dir(path)
	}
	if err == nil && !is {
		err = errNotMounted
	}
	return err
}

func (w *Watch) close() {
	notify.Close(w.watcher)
	w.watcher = nil
}
