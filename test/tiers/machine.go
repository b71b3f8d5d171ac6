package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/datapath/cgroups"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// group is the control group of one tier. Nodes of test/node create their groups below it. group is nil on a machine without suitable control groups: the CPU
// time is then the kernel's sum over children that were waited for.
type group struct {
	path string
	dir  *os.File
}

// newGroup creates a group below the one of this process.
func newGroup(name string) (*group, error) {
	mounts, err := cgroups.Mounts("/proc/self/mountinfo")
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(own)) {
		below, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !found {
			continue
		}
		path := filepath.Join(mounts[0], below, fmt.Sprintf("waggle-tier-%s-%d", name, os.Getpid()))
		if os.Mkdir(path, 0o755) != nil {
			return nil, nil // not root, or the user's group permits no children
		}
		dir, err := os.Open(path)
		return &group{path, dir}, err
	}
	return nil, nil
}

// join makes a process a member at its start.
func (g *group) join(attr *syscall.SysProcAttr) {
	if g != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(g.dir.Fd())
	}
}

// cpu returns the CPU time of all current and former members, including groups below.
func (g *group) cpu() time.Duration {
	if g == nil {
		return 0
	}
	text, _ := os.ReadFile(filepath.Join(g.path, "cpu.stat"))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(us) * time.Microsecond
		}
	}
	return 0
}

// remove kills the remaining members and removes the group.
func (g *group) remove() error {
	if g == nil {
		return nil
	}
	_ = g.dir.Close()
	_ = os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0)
	return testnet.RemoveCgroup(g.path)
}

// machineID identifies the inputs of privileged tests outside the tree: the kernel, the number of CPUs, the installed Debian packages.
func machineID() string {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.NumCPU(), os.Geteuid())
	for _, name := range []string{"/proc/version", "/proc/cmdline", "/var/lib/dpkg/status"} {
		text, _ := os.ReadFile(name)
		fmt.Fprintln(sum, len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// condition describes the load of the machine. A failure under load is a failure, but the load can be its cause.
func condition(since cpuTimes) string {
	load, _ := os.ReadFile("/proc/loadavg")
	lines := []string{"at " + time.Now().UTC().Format(time.TimeOnly) + " UTC, load average: " + string(bytes.TrimSpace(load)), since.until(readCPUTimes())}
	for _, what := range []string{"cpu", "memory", "io"} {
		text, err := os.ReadFile("/proc/pressure/" + what)
		if err != nil {
			continue
		}
		some, _, _ := strings.Cut(string(text), "\n")
		lines = append(lines, "pressure, "+what+": "+some)
	}
	return strings.Join(lines, "\n")
}

// cpuTimes holds the machine's CPU times in ticks of 10 ms: user, nice, system, idle, iowait, irq, softirq, steal.
type cpuTimes [8]uint64

func readCPUTimes() (t cpuTimes) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		if i > 0 && i <= len(t) {
			t[i-1], _ = strconv.ParseUint(field, 10, 64)
		}
	}
	return t
}

// until describes the use of the CPUs between two readings.
func (t cpuTimes) until(now cpuTimes) string {
	var all uint64
	for i := range t {
		all += now[i] - t[i]
	}
	share := func(i int) float64 { return 100 * float64(now[i]-t[i]) / float64(max(all, 1)) }
	return fmt.Sprintf("CPUs meanwhile: %.0f %% idle, %.1f %% stolen by other machines of the host", share(3)+share(4), share(7))
}
