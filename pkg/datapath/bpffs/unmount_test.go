package bpffs

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// isMounted returns a substitute for [Is] that returns mounted for paths that exist, and counts its calls.
func isMounted(mounted *bool, calls *int) func(string) (bool, error) {
	return func(path string) (bool, error) {
		*calls++
		_, err := os.Stat(path)
		return *mounted, err
	}
}

// next calls Next, which must return before the test's time is over.
func next(t *testing.T, w *Watch) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := w.Next(ctx)
	require.NoError(t, ctx.Err(), "the watch has ended silently")
	return err
}

// TestWatch_NotMounted_ReturnsErrorUntilMount: the watch creates no directory meanwhile. It begins again when the file system is mounted.
func TestWatch_NotMounted_ReturnsErrorUntilMount(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "bpf", "pins")
	mounted, calls := true, 0
	w := NewWatch(dir)
	w.isBPF = isMounted(&mounted, &calls)
	require.NoError(t, next(t, w), "the directory is created")
	mounted = false
	require.NoError(t, os.RemoveAll(filepath.Dir(dir)))
	require.NoError(t, next(t, w), "the directory is removed")
	for range 2 {
		require.ErrorContains(t, next(t, w), "mount -t bpf")
		require.NoDirExists(t, filepath.Dir(dir), "a directory below the mount point would be hidden later")
	}
	mounted = true
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, next(t, w), "mounted again: pins may have been removed meanwhile")
	pin := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(pin, nil, 0o600))
	require.NoError(t, os.Remove(pin))
	require.NoError(t, next(t, w), "a pin is removed")
}

// TestWatch_Overflow_IsNoUnmount: after more removals than the kernel's queue holds, the same watch continues.
func TestWatch_Overflow_IsNoUnmount(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	require.NoError(t, err)
	queue, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "pins")
	mounted, calls := true, 0
	w := NewWatch(dir)
	w.isBPF = isMounted(&mounted, &calls)
	require.NoError(t, next(t, w), "the directory is created")
	opened := calls
	pin, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(pin, nil, 0o600))
	for range queue + 2 {
		require.NoError(t, os.Rename(pin, other))
		pin, other = other, pin
	}
	for unread(t, w) > 0 {
		require.NoError(t, next(t, w), "pins are renamed")
	}
	require.NoError(t, os.Remove(pin))
	require.NoError(t, next(t, w), "a pin is removed")
	require.Equal(t, opened, calls, "the watch was opened again")
}

// unread returns the size of the events that the watch has not read.
func unread(t *testing.T, w *Watch) (bytes int) {
	t.Helper()
	require.NotNil(t, w.inotify, "the watch is closed")
	raw, err := w.inotify.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { bytes, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
	require.NoError(t, err)
	return bytes
}
