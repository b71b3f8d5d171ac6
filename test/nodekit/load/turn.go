package load

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// turn is the machine's permission to generate load, which one [Load] has at a time: rates are for a machine that carries no other.
//
// The permission is a lock of the root directory. All mount namespaces of a machine share that directory, whatever they mount below
// it, so the lock holds between nodes and between test programs; no file is made for it, and the kernel releases it when the
// process ends.
type turn struct{ root *os.File }

// takeTurn waits until no other load runs on this machine. The caller must release the turn.
func takeTurn() (turn, error) {
	root, err := os.Open("/")
	if err != nil {
		return turn{}, fmt.Errorf("open the directory that load generators lock: %w", err)
	}
	for {
		switch err := unix.Flock(int(root.Fd()), unix.LOCK_EX); {
		case err == nil:
			return turn{root}, nil
		case !errors.Is(err, unix.EINTR):
			return turn{}, errors.Join(fmt.Errorf("wait for the end of other load generators: %w", err), root.Close())
		}
	}
}

// release lets the next load begin. A child process that is between fork and exec may hold the directory open as well, hence unlock.
func (t turn) release() error {
	return errors.Join(unix.Flock(int(t.root.Fd()), unix.LOCK_UN), t.root.Close())
}
