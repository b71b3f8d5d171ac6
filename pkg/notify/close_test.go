package notify_test

import (
	"testing"

	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
)

// The watch ends although no goroutine waits for its end: its channels are closed.
func TestClose_EndsTheWatch(t *testing.T) {
	t.Parallel()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	notify.Close(w)
	for range w.Events {
	}
	for range w.Errors {
	}
}

func TestClose_NoWatch(t *testing.T) {
	t.Parallel()
	notify.Close[*fsnotify.Watcher](nil)
}
