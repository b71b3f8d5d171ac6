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

	"github.com/waggle-net/waggle/pkg/cgroups"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// cost is what one test took, in seconds.
type cost struct {
	Package string   `json:"package"`
	Test    string   `json:"test"`
	Result  string   `json:"result"` // pass, skip or fail
	Wall    float64  `json:"wall"`
	CPU     float64  `json:"cpu"`
	Starved float64  `json:"starved"` // a thread waited for a CPU, by the pressure of the cgroup; 0 when unknown
	Idle    float64  `json:"idle"`    // no thread ran or waited for a CPU; too short when threads run at once, each of which counts
	Over    []string `json:"over,omitempty"`
}

type limits struct{ CPU, Idle float64 }

// less subtracts the cost of TestMain, and computes the idle time of the rest.
func (c cost) less(base cost) cost {
	c.Wall, c.CPU, c.Starved = max(0, c.Wall-base.Wall), max(0, c.CPU-base.CPU), max(0, c.Starved-base.Starved)
	c.Idle = max(0, c.Wall-c.CPU-c.Starved)
	return c
}

// rank notes the limits that tests exceed, and sorts the tests by one cost, the largest first.
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

// unlisted is an error that names the tests over a limit that a list lacks. Its rows are such as "bpf TestX".
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

// resultOf reads the verdict of a test from its verbose output. A process that ends without one has failed.
func resultOf(name, output string, err error) string {
	for _, result := range []string{"PASS", "SKIP"} {
		if err == nil && strings.Contains("\n"+output, "\n--- "+result+": "+name+" ") {
			return strings.ToLower(result)
		}
	}
	return "fail"
}

// runAlone runs a command in a cgroup of its own, where that is possible, and kills what the command leaves running.
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

// newGroup makes a cgroup below that of this process.
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

// counter reads a number of microseconds from a file of a cgroup, in seconds; 0 when an older kernel lacks the file.
func counter(group, file string, before ...string) float64 {
	text, _ := os.ReadFile(filepath.Join(group, file))
	return secondsOf(string(text), before...)
}

// secondsOf finds the number of microseconds behind the given texts, each of which follows the one before it, and returns seconds; 0 for none.
func secondsOf(text string, before ...string) float64 {
	for _, word := range before {
		_, text, _ = strings.Cut(text, word)
	}
	digits, _, _ := strings.Cut(text, "\n")
	n, _ := strconv.ParseInt(strings.TrimSpace(digits), 10, 64) // 0 with an error
	return float64(n) / 1e6
}
