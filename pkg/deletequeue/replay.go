package deletequeue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxErrors caps the list of errors that a replay returns.
const maxErrors = 16

// ErrNotLocked means that a replay could not have the queue, and looked at no entry.
var ErrNotLocked = errors.New("the deletion queue cannot be locked")

// Replay is the agent's side. It takes the lock exclusively, calls remove with each entry, and deletes its file when that
// succeeds. The caller serves its socket and then calls release, never before, for the lock is what
// keeps a plugin from writing an entry that nobody would read.
//
// Release is never nil, and whoever drops it without a call drops the lock at some garbage collection. The error joins what
// went wrong. An entry whose file could not be read, or whose removal failed, stays for the next call; one whose content
// is no entry is renamed to end in ".bad". Without the lock nothing is replayed; the error then is [ErrNotLocked].
func Replay(ctx context.Context, dir string, remove func(context.Context, Entry) error) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return func() {}, fmt.Errorf("%w: make its directory: %w", ErrNotLocked, err)
	}
	lock, err := openLock(ctx, dir, unix.F_WRLCK)
	if err != nil {
		return func() {}, fmt.Errorf("%w: %w", ErrNotLocked, err)
	}
	release = func() { _ = lock.Close() }
	removeLeftovers(dir)
	entries, err := list(dir)
	if err != nil {
		return release, fmt.Errorf("read the deletion queue: %w", err)
	}
	var errs []error
	for _, path := range entries {
		if err := ctx.Err(); err != nil {
			errs = append(errs, err)
			break
		}
		if err := replayOne(ctx, path, remove); err != nil && len(errs) < maxErrors {
			errs = append(errs, err)
		}
	}
	return release, errors.Join(errs...)
}

func replayOne(ctx context.Context, path string, remove func(context.Context, Entry) error) error {
	content, err := read(path)
	if err != nil {
		return fmt.Errorf("read the deletion queue: %w", err) // no descriptor or no memory left: the entry may be whole
	}
	e, err := parse(content)
	if err != nil {
		err = fmt.Errorf("deletion queue entry %s: %w; renamed to end in %s", path, err, badSuffix)
		return errors.Join(err, os.Rename(path, path+badSuffix))
	}
	if err := remove(ctx, e); err != nil {
		return fmt.Errorf("replay the deletion of %s: %w", e, err)
	}
	return os.Remove(path)
}

// read never holds more of a file than an entry may have.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxEntrySize+1))
}

// removeLeftovers deletes files of plugins that were killed while they wrote. Nobody writes while the lock is held.
func removeLeftovers(dir string) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return // the caller's own listing reports it
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempPattern) {
			_ = os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}
