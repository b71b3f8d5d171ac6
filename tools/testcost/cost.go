package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/datapath/cgroups"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// cost is the cost of one test. Times are in seconds.
type cost struct {
	Package string   `json:"package"`
	Test    string   `json:"test"`
	Result  string   `json:"result"` // pass, skip or fail
	Wall    float64  `json:"wall"`
	CPU     float64  `json:"cpu"`
	Starved float64  `json:"starved"` // time in which a thread waited for a CPU, from the pressure of the cgroup; 0 when unknown
	Idle    float64  `json:"idle"`    // time in which no thread ran or waited for a CPU; too low if several threads run at the same time
	Over    []string `json:"over,omitempty"`
}

type limits struct{ CPU, Idle float64 }

// less subtracts the cost of TestMain, and computes the idle time from the remaining times.
func (c cost) less(base cost) cost {
	c.Wall, c.CPU, c.Starved = max(0, c.Wall-base.Wall), max(0, c.CPU-base.CPU), max(0, c.Starved-base.Starved)
	c.Idle = max(0, c.Wall-c.CPU-c.Starved)
	return c
}

// rank sets the exceeded limits of tests, and sorts the tests by one cost, the largest first.
func rank(costs []cost, order string, l limits) []cost {
	by := func(c cost) float64 { return map[string]float64{"cpu": c.CPU, "idle": c.Idle, "wall": c.Wall}[order] }
	for i, c := range costs {
		if c.CPU > l.CPU {
			costs[i].Over = append(costs[i].Over, "cpu")
		}
		if c.Idle > l.Idle {
			costs[i].Over = append(costs[i].Over, "idle")
		}
	}
	slices.SortStableFunc(costs, func(a, b cost) int { return cmp.Or(cmp.Compare(by(b), by(a)), strings.Compare(a.Test, b.Test)) })
	return costs
}

// unlisted returns an error with the tests over a limit that are not in the list; nil if there are none. The list contains rows such as "bpf TestX".
func unlisted(costs []cost, list []string) error {
	var names []string
	for _, c := range costs {
		if name := strings.TrimPrefix(c.Package, module+"/") + " " + c.Test; len(c.Over) > 0 && !slices.Contains(list, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("over a limit and not in the list of expensive tests (test/tiers/lists.go): %s", strings.Join(names, ", "))
}

const module = "github.com/waggle-net/waggle"

// resultOf returns the result of a test from its verbose output. Without a result in the output the test has failed.
func resultOf(name, output string, err error) string {
	for _, result := range []string{"PASS", "SKIP"} {
		if err == nil && strings.Contains("\n"+output, "\n--- "+result+": "+name+" ") {
			return strings.ToLower(result)
		}
	}
	return "fail"
}

// runAlone runs a command in a cgroup of its own, if possible, and kills remaining processes of the cgroup.
func runAlone(cmd *exec.Cmd) (c cost, output string, err error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	group, groupErr := newGroup()
	if groupErr == nil {
		defer func() {
			_ = os.WriteFile(filepath.Join(group.Name(), "cgroup.kill"), []byte("1"), 0)
			_ = group.Close()
			err = cmp.Or(err, testnet.RemoveCgroup(group.Name()))
		}()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	}
	began := time.Now()
	err = cmd.Run()
	c.Wall = time.Since(began).Seconds()
	switch {
	case groupErr == nil:
		c.CPU, c.Starved = counter(group.Name(), "cpu.stat", "usage_usec "), counter(group.Name(), "cpu.pressure", "some ", "total=")
	case cmd.ProcessState != nil:
		c.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	return c, out.String(), err
}

// newGroup creates a cgroup below the cgroup of this process.
func newGroup() (*os.File, error) {
	mounts, err := cgroups.Mounts("/proc/self/mountinfo")
	own, err2 := os.ReadFile("/proc/self/cgroup")
	if err := cmp.Or(err, err2); err != nil || len(mounts) == 0 {
		return nil, cmp.Or(err, os.ErrNotExist)
	}
	_, path, _ := strings.Cut("\n"+string(own), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	dir, err := os.MkdirTemp(filepath.Join(mounts[0], path), "testcost-")
	if err != nil {
		return nil, err
	}
	return os.Open(dir)
}

// counter reads a number of microseconds from a file of a cgroup and returns seconds; 0 if the kernel does not have the file.
func counter(group, file string, before ...string) float64 {
	text, _ := os.ReadFile(filepath.Join(group, file))
	return secondsOf(string(text), before...)
}

// secondsOf returns in seconds the number of microseconds after the given texts, which must appear in this order; 0 without a number.
func secondsOf(text string, before ...string) float64 {
	for _, word := range before {
		_, text, _ = strings.Cut(text, word)
	}
	digits, _, _ := strings.Cut(text, "\n")
	n, _ := strconv.ParseInt(strings.TrimSpace(digits), 10, 64) // 0 with an error
	return float64(n) / 1e6
}
