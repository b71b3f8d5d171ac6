package load

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/attributes"
)

// Turn is the machine-wide permission to generate load, which one test holds at a time: rates assume a machine without other load. A [Load] holds a turn
// while it runs ([Load.Turn]). A test with its own generator calls [TakeTurn] and holds the turn as briefly as possible, because other tests wait.
//
// The permission is a lock of the root directory. All mount namespaces of a machine share that directory, regardless of mounts below it, so the lock works
// between nodes and between test programs. It needs no file, and the kernel releases it when the process ends.
type Turn struct {
	root *os.File
	// once makes Release idempotent.
	once sync.Once
	err  error
}

// TakeTurn waits until no other test on this machine generates load. The turn ends by [Turn.Release] or with the test. The caller must not already hold a
// turn or a [Load]: the call would deadlock. It sets [attributes.WaitedForLoads] of the test.
func TakeTurn(t testing.TB) *Turn {
	t.Helper()
	began := time.Now()
	turn, err := takeTurn()
	if err != nil {
		t.Fatal(err)
	}
	t.Attr(attributes.WaitedForLoads, time.Since(began).Round(time.Millisecond).String())
	t.Cleanup(func() {
		if err := turn.Release(); err != nil {
			t.Error(err)
		}
	})
	return turn
}

func takeTurn() (*Turn, error) {
	root, err := os.Open("/")
	if err != nil {
		return nil, fmt.Errorf("open the directory that load generators lock: %w", err)
	}
	for {
		switch err := unix.Flock(int(root.Fd()), unix.LOCK_EX); {
		case err == nil:
			return &Turn{root: root}, nil
		case !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("wait for the end of other load generators: %w", err), root.Close())
		}
	}
}

// Release lets the next load start. Further calls return the result of the first one. A child process between fork and exec may hold the directory open as
// well, so Release unlocks it explicitly.
func (t *Turn) Release() error {
	t.once.Do(func() { t.err = errors.Join(unix.Flock(int(t.root.Fd()), unix.LOCK_UN), t.root.Close()) })
	return t.err
}
