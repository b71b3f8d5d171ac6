// Package agentlock keeps apart what must not run at the same time on one node: two agents of one state directory, two runs of
// "waggle-agent setup", and any of them and "waggle cleanup".
//
// The locks are files in the state directory. The kernel drops a lock with its process, so a file that is left behind locks
// nothing. An agent also announces itself in its network namespace, for those who do not know its state directory.
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

// HeldError means that another process has the lock.
type HeldError struct {
	Path string
	PID  int // 0 when the holder did not write it
}

// Error implements error.
func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is locked by another process%s", e.Path, Process(e.PID))
}

// Process names a process in a message: " (pid 7)", or nothing when it is not known.
func Process(pid int) string {
	if pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// Take makes the file if need be, locks it and writes our process id into it. A lock that is taken gives [*HeldError].
// Closing the file gives it back.
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

// TakeExisting locks a file that is there, and changes nothing in it.
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
