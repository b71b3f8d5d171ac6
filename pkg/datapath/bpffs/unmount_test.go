package bpffs

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
)

// TestWatch_Unmounted: the kernel ends a watch with an event when the file system is unmounted. The caller must notice that, and the watch must begin again when
// the file system is mounted again. The library reports the event without an operation.
func TestWatch_Unmounted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "bpf", "pins")
	mounted := true
	w := NewWatch(dir)
	w.isBPF = func(path string) (bool, error) {
		_, err := os.Stat(path)
		return mounted, err
	}
	next := func() error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.Next(ctx)
		require.NoError(t, ctx.Err(), "the watch has ended silently")
		return err
	}
	require.NoError(t, next(), "the directory is created")
	go func(events chan fsnotify.Event) { events <- fsnotify.Event{Name: dir} }(w.watcher.Events)
	mounted = false
	require.NoError(t, next(), "unmounted")
	require.NoError(t, os.RemoveAll(filepath.Dir(dir)))
	for range 2 {
		require.ErrorContains(t, next(), "mount -t bpf")
		require.NoDirExists(t, filepath.Dir(dir), "a directory below the mount point would be hidden later")
	}
	mounted = true
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, next(), "mounted again: pins may have been removed meanwhile")
	pin := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(pin, nil, 0o600))
	require.NoError(t, os.Remove(pin))
	require.NoError(t, next(), "a pin is removed")
}
