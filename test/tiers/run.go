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

// verdict is the result of a tier.
type verdict struct {
	tier tier
	// sources is the hash of all inputs of the result; "" if the result is not stored.
	sources string
	counts  counts
	skips   []outcome
	slow    []outcome
	failed  []string // packages, tests and commands
	cpu     time.Duration
	took    time.Duration
	before  cpuTimes

	slowness  float64 // of the machine, while the tier ran
	condition string  // of the machine at the first failure, or at the end of the tier
}

// noteCondition records the load of the machine on its first call.
func (v *verdict) noteCondition() {
	if v.condition == "" {
		v.condition = condition(v.before)
	}
}

// runner runs tiers.
type runner struct {
	tree   *tree
	all    bool // ignore cached results
	clean  bool // a clone in CI: programs are built from it, and skips are failures
	out    io.Writer
	stamps stamps.Store[passedTier]
}

// removeOld removes a file. A missing file is no error.
func removeOld(name string) error {
	if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// tier runs all commands of one tier. It continues after a failed command.
func (r *runner) tier(ctx context.Context, t tier, seed string) (v verdict) {
	v = verdict{tier: t, before: readCPUTimes(), slowness: 1}
	began := time.Now()
	defer func() { v.noteCondition() }()
	v.sources = r.sources(t)
	if v, kept := r.kept(v); kept {
		return v
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(r.record(t.name)), 0o755), removeOld(r.record(t.name))); err != nil {
		v.failed = append(v.failed, fmt.Sprintf("create the directory for the record of the tests: %v", err))
		return v
	}
	g, err := newGroup(t.name)
	if err != nil {
		v.failed = append(v.failed, fmt.Sprintf("make a control group: %v", err))
		return v
	}
	speed := startSpeedometer(ctx, samplePeriod)
	var children time.Duration
	for _, c := range t.calls(r.tree, r.all) {
		if t.seed == treeSeed {
			c.env = append(c.env, testseed.Env+"="+seed)
		}
		if r.all { // disables caches of the command itself
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
	if v.slowness, err = speed.stop(); err != nil {
		v.failed = append(v.failed, err.Error())
	}
	v.cpu = max(children, g.cpu()) // only g includes killed processes without a wait; only children includes processes in other groups
	v.took = time.Since(began)
	if err := g.remove(); err != nil {
		v.failed = append(v.failed, err.Error())
	}
	return v
}

// call runs one command and returns its CPU time, including the children that it waited for.
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

// events adds the output of `go test -json` to the verdict, and appends it to the record of the tier.
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

// record returns the path of the file with the events of a tier's tests: the times when each started, paused and ended, and its output.
func (r *runner) record(tier string) string {
	return filepath.Join(r.tree.root, "bin", "tests", tier+".json")
}

// discard reads until EOF, so that the writer does not block.
func discard(from io.Reader) error {
	_, err := io.Copy(io.Discard, from)
	return err
}

// lines prints the output of other commands. One of them is test/kernels, whose last line contains the numbers of its tests.
func (r *runner) lines(from io.Reader, v *verdict) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	var last []string
	for lines.Scan() {
		fmt.Fprintln(r.out, lines.Text())
		if last = append(last, lines.Text()); len(last) > failureLines {
			last = last[1:]
		}
		if strings.Contains(lines.Text(), "--- FAIL: ") {
			v.failed = append(v.failed, strings.Join(last, "\n"))
			last = nil
		}
		var passed, standing, unchanged, skipped int
		if n, _ := fmt.Sscanf(lines.Text(), kernelsLine, &passed, &standing, &unchanged, &skipped); n == 4 {
			v.counts.add(counts{run: passed, cached: standing, skipped: skipped, cachedPackages: unchanged, packages: unchanged})
		}
	}
	return lines.Err()
}

// failureLines is the number of lines in the report of a failed test of other commands, and of any failure in the summary. The last line of the former names
// the test.
const failureLines = 8

// kernelsLine is the last line of test/kernels.
const kernelsLine = "kernels: %d tests passed, %d tests in %d suites unchanged, %d skipped"

// locked serializes writes of several tiers.
type locked struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

// prefixed writes a prefix before each line. Each call of Write must contain complete lines.
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
