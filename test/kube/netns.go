package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// netNS is an execution environment of programs: a set of namespaces, and the cgroups to join.
type netNS struct {
	namespaces []namespace
	join       string // shell command that moves the shell into the place's cgroups; "" if there are none
}

type namespace struct {
	file *os.File
	kind int // CLONE_NEW...
}

// kinds lists the namespaces in the order in which a thread enters them.
var kinds = []struct {
	name string
	kind int
}{{"cgroup", unix.CLONE_NEWCGROUP}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET},
	{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}

// openNamespaces opens the namespaces of a process.
func openNamespaces(pid int) (all []namespace, err error) {
	for _, k := range kinds {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, k.name))
		if err != nil {
			return nil, errors.Join(err, closeNamespaces(all))
		}
		all = append(all, namespace{file, k.kind})
	}
	return all, nil
}

func closeNamespaces(all []namespace) (err error) {
	for _, n := range all {
		err = errors.Join(err, n.file.Close())
	}
	return err
}

// newNetwork creates a network namespace that contains only lo.
func newNetwork() (p netNS, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare the network namespace: %w", err)
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		p.namespaces = []namespace{{file, unix.CLONE_NEWNET}}
		return err
	})
	return p, err
}

// do runs f on a thread inside the place. Processes that f starts and sockets that f opens are inside too; goroutines that f starts are not.
func (p netNS) do(f func() error) error {
	return onThread(func() error {
		for _, n := range p.namespaces {
			if err := unix.Setns(int(n.file.Fd()), n.kind); err != nil {
				return fmt.Errorf("enter %s: %w", n.file.Name(), err)
			}
		}
		return f()
	})
}

// command returns a program that joins the place's cgroups before it starts. The caller must start the program inside [place.do].
func (p netNS) command(argv ...string) *exec.Cmd {
	if p.join != "" {
		argv = append([]string{"/bin/sh", "-c", p.join + `; exec "$0" "$@"`}, argv...)
	}
	return exec.Command(argv[0], argv[1:]...)
}

// onThread runs f on a separate thread that ends with f, so that no other goroutine inherits its namespaces. The main thread cannot be used: it cannot end,
// and /proc/self describes it. While this goroutine is locked to the main thread, onThread runs f on another one.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			result <- onThread(f)
			return
		}
		// Threads share their file system context, and setns rejects a mount namespace while the context is shared.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			result <- fmt.Errorf("unshare the view of the file system: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
