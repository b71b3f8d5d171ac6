package deletequeue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Queue is the plugin's handle of the queue. While it is open, the agent cannot replay.
type Queue struct {
	dir  string
	lock *os.File
}

// Open creates dir and takes the lock shared. While an agent replays, Open waits, at most until ctx ends. It does not create the state directory
// above dir, because a cleanup of the node may have just removed it; then the error is [ErrNoState].
func Open(ctx context.Context, dir string) (*Queue, error) {
	err := os.Mkdir(dir, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("create the deletion queue: %w: %w", ErrNoState, err)
	case err != nil && !errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("create the deletion queue: %w", err)
	}
	lock, err := openLock(ctx, dir, unix.F_RDLCK)
	if err != nil {
		return nil, fmt.Errorf("open the deletion queue: %w", err)
	}
	return &Queue{dir: dir, lock: lock}, nil
}

// Close releases the lock.
func (q *Queue) Close() error { return q.lock.Close() }

// Enqueue writes an entry for the next replay. The write of the file is atomic.
func (q *Queue) Enqueue(e Entry) error {
	content, err := format(e)
	if err != nil {
		return fmt.Errorf("queue the deletion: %w", err)
	}
	path := filepath.Join(q.dir, e.fileName())
	entries, err := list(q.dir)
	if err != nil {
		return fmt.Errorf("queue the deletion: %w", err)
	}
	if len(entries) >= MaxEntries && !slices.Contains(entries, path) {
		return fmt.Errorf("queue the deletion: %w: %s holds %d entries; start the agent, which empties the queue",
			ErrFull, q.dir, len(entries))
	}
	return writeFile(q.dir, path, content)
}

// fileName returns the same name for all entries of one attachment.
func (e Entry) fileName() string {
	e.NewestInterface = 0
	content, _ := json.Marshal(e) // strings always marshal
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]) + suffix
}

func writeFile(dir, path string, content []byte) (err error) {
	file, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return fmt.Errorf("queue the deletion: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
			err = fmt.Errorf("queue the deletion: %w", err)
		}
	}()
	if _, err = file.Write(content); err == nil {
		err = file.Chmod(0o644)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
