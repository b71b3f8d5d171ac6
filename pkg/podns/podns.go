// Package podns opens the network namespaces of pods.
package podns

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrGone means that the namespace of a pod no longer exists; so does nothing that was in it.
var ErrGone = errors.New("the network namespace is gone")

// Open opens the network namespace at a path. The error is [ErrGone] unless the file has the inode: the path may lead to the namespace of
// another pod by now. The caller must close the handle.
func Open(path string, inode uint64) (netns.NsHandle, error) {
	ns, err := netns.GetFromPath(path)
	if errors.Is(err, os.ErrNotExist) {
		return ns, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return ns, fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(ns), &stat)
	if err == nil && stat.Ino != inode {
		err = fmt.Errorf("%w: the path leads to another one", ErrGone)
	}
	if err != nil {
		return ns, errors.Join(fmt.Errorf("open the network namespace %s: %w", path, err), ns.Close())
	}
	return ns, nil
}
