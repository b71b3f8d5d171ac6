// Package agentlock prevents processes from running at the same time on one node: two agents of one state directory, two runs of
// "waggle-agent setup", and "waggle cleanup" together with any of them.
//
// The locks are files in the state directory. The kernel releases a lock when its process ends, so a file that is left behind
// locks nothing. An agent also announces itself in its network namespace, which excludes agents and cleanups that use another state directory.
package agentlock

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Names of the lock files.
const (
	AgentFile = "agent.lock"
	SetupFile = "setup.lock"
)

// HeldError means that another process owns the lock.
type HeldError struct {
	Path string
	PID  int // 0 when the owner of the lock did not write it
}

// Error implements error.
func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is locked by another process%s", e.Path, Process(e.PID))
}

// Process names a process in a message: " (pid 7)", or "" when the pid is not known.
func Process(pid int) string {
	if pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// Take creates the file if it is missing, locks it and writes the id of this process into it. If another process owns the lock,
// the error is a [*HeldError]. Closing the file releases the lock.
func Take(path string) (*os.File, error) {
	f, err := open(path, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return f, nil
}

// TakeExisting locks an existing file and does not change its content.
func TakeExisting(path string) (*os.File, error) { return open(path, 0) }

func open(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o660)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &HeldError{path, readPID(f)}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func readPID(f *os.File) int {
	buf := make([]byte, 16)
	n, _ := f.ReadAt(buf, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	return pid
}
