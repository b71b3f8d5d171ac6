package bpffs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/notify"
)

var errNotMounted = errors.New("the BPF file system is not mounted: mount it on the directory of --bpf-root (mount -t bpf bpffs DIRECTORY), or restart the agent")

// Watch detects removals of pins from a directory by any process. It uses inotify without package fsnotify, whose newer versions do not report an unmount.
type Watch struct {
	dir     string
	isBPF   func(path string) (bool, error) // [Is], except in tests
	lost    bool                            // notifications were lost since Next last returned without an error
	inotify *os.File                        // nil until the first call, and after the removal of the directory or the unmount
}

const (
	// removed are the events that a watch requests.
	removed = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// ended are the events after which a watch sends no events about the path.
	ended = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// NewWatch returns a watch for dir. It opens nothing.
func NewWatch(dir string) *Watch { return &Watch{dir: dir, isBPF: Is} }

// Next waits until any process removes or renames an entry of the directory, or the directory itself, or unmounts its file system. If the directory does not
// exist, Next creates it and returns. While no BPF file system is mounted, Next returns an error; the first call after the mount returns at once, because
// notifications were lost. When ctx ends, Next closes the watch.
func (w *Watch) Next(ctx context.Context) error {
	if w.inotify == nil {
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
	events, err := w.read(ctx)
	if ctx.Err() != nil {
		w.close()
		return nil
	}
	if err != nil || events&ended != 0 {
		w.close()
		w.lost = true
	}
	return err // without an error, a pin is removed, or any may be because the queue of the watch was full
}

// read waits for events and returns their bits.
func (w *Watch) read(ctx context.Context) (events uint32, err error) {
	// A deadline ends the read. After a close, the read would wait until the kernel has freed the watch.
	f := w.inotify
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	var buf [4096]byte
	n, err := f.Read(buf[:])
	if err != nil {
		return 0, fmt.Errorf("read removals of pins in %s: %w", w.dir, err)
	}
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		events |= binary.NativeEndian.Uint32(b[4:]) // the mask, after the number of the watch
		name := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[min(unix.SizeofInotifyEvent+name, len(b)):]
	}
	return events, nil
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
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false, os.NewSyscallError("inotify_init1", err)
	}
	w.inotify = os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, w.dir, removed|unix.IN_ONLYDIR); err != nil {
		w.close()
		return false, os.NewSyscallError("inotify_add_watch", err)
	}
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
	notify.Close(w.inotify)
	w.inotify = nil
}
