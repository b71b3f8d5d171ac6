package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/stamps"
)

// verdict is how a tier ended.
type verdict struct {
	tier tier
	// sources is the hash of what decides how the tier ends; "" when its result is not kept.
	sources string
	counts  counts
	skips   []outcome
	slow    []outcome
	failed  []string // packages, tests and commands
	cpu     time.Duration
	took    time.Duration
	before  cpuTimes

	slowness  float64 // by which the budget is multiplied; the larger of the measurements before and after the tier
	condition string  // of the machine at the first failure, or when the tier ended
}

// measureSlowness measures the machine and keeps the largest result.
func (v *verdict) measureSlowness() error {
	now, err := v.tier.slowness(slowness)
	v.slowness = max(v.slowness, now)
	return err
}

// noteCondition records how busy the machine is, once.
func (v *verdict) noteCondition() {
	if v.condition == "" {
		v.condition = condition(v.before)
	}
}

// runner runs tiers.
type runner struct {
	tree   *tree
	all    bool // ignore cached results
	clean  bool // a clone of CI, whose programs are built from it and where skips are failures
	out    io.Writer
	stamps stamps.Store[passedTier]
}

// removeOld removes a file that may be absent.
func removeOld(name string) error {
	if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// tier runs the commands of one tier. All run, also after one has failed.
func (r *runner) tier(ctx context.Context, t tier, seed string) (v verdict) {
	v = verdict{tier: t, before: readCPUTimes(), slowness: 1}
	began := time.Now()
	defer func() { v.noteCondition() }()
	v.sources = r.sources(t)
	if v, kept := r.kept(v); kept {
		return v
	}
	if err := v.measureSlowness(); err != nil {
		v.failed = append(v.failed, err.Error())
		return v
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(r.record(t.name)), 0o755), removeOld(r.record(t.name))); err != nil {
		v.failed = append(v.failed, fmt.Sprintf("make room for the record of the tests: %v", err))
		return v
	}
	g, err := newGroup(t.name)
	if err != nil {
		v.failed = append(v.failed, fmt.Sprintf("make a control group: %v", err))
		return v
	}
	var children time.Duration
	for _, c := range t.calls(r.tree, r.all) {
		if t.seed == treeSeed {
			c.env = append(c.env, testseed.Env+"="+seed)
		}
		if r.all { // what the command itself caches
			c.env = append(c.env, allEnv+"=1")
		}
		used, err := r.call(ctx, c, g, &v)
		children += used
		if err != nil {
			v.noteCondition()
			if len(v.failed) == 0 {
				v.failed = append(v.failed, fmt.Sprintf("%s: %v", strings.Join(c.args[:min(3, len(c.args))], " "), err))
			}
		}
	}
	if err := v.measureSlowness(); err != nil { // again: a tier takes minutes, and other machines of the host have their own load
		v.failed = append(v.failed, err.Error())
	}
	v.cpu = max(children, g.cpu()) // processes that were killed unseen are in one, those that moved to another group in the other
	v.took = time.Since(began)
	if err := g.remove(); err != nil {
		v.failed = append(v.failed, err.Error())
	}
	return v
}

// call runs one command and returns its CPU time, with that of the children that it waited for.
func (r *runner) call(ctx context.Context, c call, g *group, v *verdict) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = filepath.Join(r.tree.root, c.dir)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.join(cmd.SysProcAttr)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		_ = write.CloseWithError(nil)
		done <- err
	}()
	var err error
	if c.events {
		err = r.events(v.tier.name, read, v)
	} else {
		err = r.lines(read, v)
	}
	err = errors.Join(err, <-done)
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// events reads what `go test -json` prints into the verdict, and appends it to the record of the tier.
func (r *runner) events(tier string, from io.Reader, v *verdict) error {
	record, err := os.OpenFile(r.record(tier), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return errors.Join(err, discard(from))
	}
	defer record.Close()
	found := newResults(r.out)
	found.onFailure = v.noteCondition
	err = found.read(io.TeeReader(from, record))
	v.counts.add(found.counts)
	v.skips = append(v.skips, found.skips...)
	v.slow = append(v.slow, found.slow...)
	v.failed = append(v.failed, found.failing...)
	return err
}

// record names the file with the events of a tier's tests: when each started, paused and ended, and what it printed.
func (r *runner) record(tier string) string {
	return filepath.Join(r.tree.root, "bin", "tests", tier+".json")
}

// discard reads to the end, so that the writer does not wait.
func discard(from io.Reader) error {
	_, err := io.Copy(io.Discard, from)
	return err
}

// lines prints what other commands say. One of them is test/kernels, which counts its tests in its last line.
func (r *runner) lines(from io.Reader, v *verdict) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		fmt.Fprintln(r.out, lines.Text())
		var passed, standing, unchanged, skipped int
		if n, _ := fmt.Sscanf(lines.Text(), kernelsLine, &passed, &standing, &unchanged, &skipped); n == 4 {
			v.counts.add(counts{run: passed, cached: standing, skipped: skipped, cachedPackages: unchanged, packages: unchanged})
		}
	}
	return lines.Err()
}

// kernelsLine is the last line of test/kernels.
const kernelsLine = "kernels: %d tests passed, %d tests in %d suites unchanged, %d skipped"

// locked lets several tiers print whole pieces of text.
type locked struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

// prefixed puts a prefix before each line. Each call of Write takes whole lines.
type prefixed struct {
	prefix string
	out    io.Writer
}

func (p *prefixed) Write(text []byte) (int, error) {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		b.WriteString(p.prefix)
		b.Write(line)
	}
	if _, err := p.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(text), nil
}
