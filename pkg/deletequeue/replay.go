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

// maxErrors limits the number of errors that a replay returns.
const maxErrors = 16

// ErrNotLocked means that a replay could not lock the queue, and read no entry.
var ErrNotLocked = errors.New("the deletion queue cannot be locked")

// Replay takes the lock exclusively, calls remove with each entry, and deletes the file of the entry when remove succeeds. The
// caller must serve its socket before it calls release: until then the lock prevents a plugin from writing an entry that no
// replay would read.
//
// release is never nil. Without a call, a later garbage collection releases the lock. The error joins the first maxErrors errors.
// An entry whose file could not be read, or whose removal failed, stays for the next call. A file whose content is not an entry
// is renamed to end in ".bad". Without the lock Replay reads no entry, and the error is [ErrNotLocked].
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
		return fmt.Errorf("read the deletion queue: %w", err) // for instance, no free descriptor or memory: the entry may be valid
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

// read reads at most one byte more than an entry may have.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxEntrySize+1))
}

// removeLeftovers deletes incomplete files of plugins that were killed. No plugin writes while the agent holds the lock.
func removeLeftovers(dir string) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return // the caller lists the directory as well and reports the error
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempPattern) {
			_ = os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}
