package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kube"
)

var errRunning = errors.New("the lock is held")

// takeLock returns the open, locked file, or errRunning if a cluster holds the lock.
func takeLock() (*os.File, error) {
	lock, err := os.OpenFile(file("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errRunning
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return lock, nil
}

// down stops the process that runs the cluster; all others end with it.
func down() error {
	if _, err := os.Stat(stateDir()); errors.Is(err, os.ErrNotExist) {
		fmt.Println("No cluster is running.")
		return nil
	}
	lock, ended, err := end()
	if err != nil {
		return fmt.Errorf("end the cluster: %w", err)
	}
	defer lock.Close()
	if err := os.RemoveAll(stateDir()); err != nil {
		return err
	}
	fmt.Println(map[bool]string{true: "The cluster was removed.", false: "No cluster is running; the remains of one were removed."}[ended])
	return nil
}

// end stops a running cluster and returns the lock. The result ended reports whether a cluster was running.
func end() (lock *os.File, ended bool, err error) {
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if lock, err = takeLock(); !errors.Is(err, errRunning) {
			return lock, ended, err
		}
		pid, err := lockOwner()
		if err != nil {
			return nil, false, err
		}
		if err := unix.Kill(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, false, fmt.Errorf("send %v to process %d: %w", signal, pid, err)
		}
		waitUnlocked(30 * time.Second)
		ended = true
	}
	lock, err = takeLock()
	return lock, ended, err
}

// lockOwner returns the id of the process that holds the lock, from the lock file.
func lockOwner() (int, error) {
	text, err := os.ReadFile(file("lock"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("%s is locked, but holds no process number: try again in a moment", file("lock"))
	}
	return pid, nil
}

func waitUnlocked(limit time.Duration) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if lock, err := takeLock(); err == nil {
			_ = lock.Close()
			return
		}
	}
}

// node replaces this process with a program on a node, by default a shell.
func node(args []string) error {
	if len(args) == 0 {
		return errors.New("name a node, e.g. node-1")
	}
	pid, err := lockOwner()
	if err != nil {
		return fmt.Errorf("no cluster is running (make cluster starts one): %w", err)
	}
	dirs, err := kube.Cgroups(fmt.Sprintf("waggle-kube-%d-*", pid))
	if err != nil {
		return err
	}
	var found []string
	for _, dir := range dirs {
		for _, pattern := range []string{"/kube-*/%s/cgroup.procs", "/kube-*/%s/system/cgroup.procs"} { // the second exists on machines with version 2 only
			procs, err := filepath.Glob(dir + fmt.Sprintf(pattern, args[0]))
			if err != nil {
				return err
			}
			found = append(found, procs...)
		}
	}
	for _, procs := range found {
		text, err := os.ReadFile(procs)
		if first, _, ok := strings.Cut(string(text), "\n"); err == nil && ok {
			argv := []string{"nsenter", "--target", first, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
			if argv = append(argv, args[1:]...); len(args) == 1 {
				argv = append(argv, "/bin/bash")
			}
			return syscall.Exec("/usr/bin/nsenter", argv, os.Environ())
		}
	}
	return fmt.Errorf("the cluster has no node %s", args[0])
}
