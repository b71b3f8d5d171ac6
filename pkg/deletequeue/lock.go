package deletequeue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is the time between two attempts to take the lock. A blocking lock call could not be cancelled.
const pollInterval = 10 * time.Millisecond

// openLock opens the lock file of dir and takes its lock, unix.F_RDLCK (shared) or unix.F_WRLCK (exclusive). Closing the
// file releases the lock.
func openLock(ctx context.Context, dir string, kind int16) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		lock := unix.Flock_t{Type: kind} // the whole file
		err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: another process holds it: %w", path, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}
