package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// account counts the CPU time of the inner process and all its descendants, including nodes. The times that wait(2) reports omit processes that were killed
// with a PID namespace. Without a cgroup version 2 hierarchy (one without controllers suffices), account counts nothing.
type account struct {
	dir   string   // the parent of the process's cgroup and of the nodes' cgroups
	group *os.File // the cgroup of the process: in version 2 only leaves may hold processes
}

func newAccount(name string) (a account, err error) {
	all, err := hierarchies()
	if err != nil {
		return a, err
	}
	for _, h := range all {
		if h.version != 2 {
			continue
		}
		dirs, err := makeCgroupsIn([]hierarchy{h}, name+"/programs")
		if err != nil {
			return a, err
		}
		a.dir = filepath.Dir(dirs[0])
		a.group, err = os.Open(dirs[0])
		return a, err
	}
	return a, nil
}

// attach makes a process start in the account's cgroup.
func (a account) attach(attributes *syscall.SysProcAttr) {
	if a.group != nil {
		attributes.UseCgroupFD, attributes.CgroupFD = true, int(a.group.Fd())
	}
}

func (a account) close() {
	if a.group != nil {
		_ = a.group.Close() // nothing was written
	}
}

// text returns one line for the log with the CPU time of a test program.
func (a account) text(program string) string {
	stat, _ := os.ReadFile(filepath.Join(a.dir, "cpu.stat"))
	for line := range strings.Lines(string(stat)) {
		var microseconds int64
		if n, _ := fmt.Sscanf(line, "usage_usec %d", &microseconds); n == 1 {
			return fmt.Sprintf("CPU time of %s and its clusters: %.1f s", filepath.Base(program), (time.Duration(microseconds) * time.Microsecond).Seconds())
		}
	}
	return fmt.Sprintf("CPU time of %s and its clusters: unknown, as no cgroups of version 2 are mounted", filepath.Base(program))
}

// leaveAccount moves this process to the root, so that the account's cgroup can be removed.
func leaveAccount() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.version == 2 {
			err = errors.Join(err, os.WriteFile(filepath.Join(h.path, "cgroup.procs"), []byte("0"), 0))
		}
	}
	return err
}
