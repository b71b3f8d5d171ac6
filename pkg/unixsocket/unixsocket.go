// Package unixsocket creates the Unix sockets that the agent serves.
package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// maxPath is the capacity of sun_path in bytes, less its terminator and the suffix of the temporary name.
const maxPath = 107 - len(suffix)

// suffix is the end of the temporary name of a socket before it is complete.
const suffix = ".new"

// Options of a socket.
type Options struct {
	Mode  fs.FileMode // e.g. 0o660
	Group string      // owning group, if it exists and the process may set it; empty for none
}

// Listener accepts connections on a socket and removes its file when it closes.
type Listener struct {
	*net.UnixListener
	path  string
	inode uint64
	once  sync.Once
}

// Listen creates a socket at path, and its directory. The file appears with its owner and mode already set. Listen replaces a socket without a listener. It
// returns an error for a socket with a listener and for a file of another kind.
func Listen(path string, o Options) (*Listener, error) {
	l, err := listen(path, o)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, o Options) (*Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path has %d bytes, at most %d are possible: choose a shorter directory", len(path), maxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o775); err != nil {
		return nil, err
	}
	if err := checkFree(path); err != nil {
		return nil, err
	}
	tmp := path + suffix
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	inode, err := publish(tmp, path, o)
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(tmp))
	}
	return &Listener{UnixListener: l, path: path, inode: inode}, nil
}

// publish sets the owner and mode of a socket and renames it to path.
func publish(tmp, path string, o Options) (inode uint64, err error) {
	if gid, found := groupID(o.Group); found && os.Geteuid() == 0 {
		// Without CAP_CHOWN the socket keeps the group of root, which permits less.
		if err := os.Chown(tmp, 0, gid); err != nil && !errors.Is(err, fs.ErrPermission) {
			return 0, err
		}
	}
	if err := os.Chmod(tmp, o.Mode); err != nil {
		return 0, err
	}
	info, err := os.Lstat(tmp)
	if err != nil {
		return 0, err
	}
	return inodeOf(info), os.Rename(tmp, path)
}

// checkFree returns an error unless path is absent or a socket without a listener.
func checkFree(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("the file at this path is not a socket: remove it or choose another path")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return errors.New("another process serves this socket: stop it or choose another path")
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("check whether another process serves the socket: %w", err)
}

func groupID(name string) (int, bool) {
	if name == "" {
		return 0, false
	}
	group, err := user.LookupGroup(name)
	if err != nil {
		return 0, false
	}
	gid, err := strconv.Atoi(group.Gid)
	return gid, err == nil
}

// Path returns the path of the socket.
func (l *Listener) Path() string { return l.path }

// Close stops listening and removes the file, unless another process has replaced it.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	l.once.Do(func() {
		if info, statErr := os.Lstat(l.path); statErr == nil && inodeOf(info) == l.inode {
			err = errors.Join(err, os.Remove(l.path))
		}
	})
	return err
}

func inodeOf(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}
