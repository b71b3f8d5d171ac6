package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/stamps"
)

// options holds the values of the command line.
type options struct {
	kernels     []string      // such as "6.1"
	packages    []string      // folders in the tree; empty means all in the table
	run         string        // regular expression of tests to run; "" means the table's tests
	all         bool          // runs suites that have passed, too
	bench       bool          // runs the benchmarks instead of the suites
	json        bool          // prints the benchmarks' results as JSON
	accel       string        // qemu's accelerator
	agentBefore string        // program: the agent of another revision; empty for none
	timeout     time.Duration // of each machine, from boot to power-off
	cache       string        // shared by all clones: kernels and stamps
	out         string        // folder for the programs and the output of the last run
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	o, err := parse(flag.CommandLine, os.Args[1:], os.Getenv)
	if err == nil {
		if o.bench {
			err = runBenchmarks(ctx, o, os.Stdout)
		} else {
			err = run(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func parse(flags *flag.FlagSet, args []string, getenv func(string) string) (options, error) {
	var o options
	var format string
	kernels := flags.String("kernels", "6.1,6.12", "kernels to test, by comma")
	packages := flags.String("packages", "", "packages to test, by comma, such as bpf/tests,cells/datapath/loader; all of the table if empty")
	flags.StringVar(&o.run, "run", "", "regular expression of the names of tests to run in place of the table's; such a run neither uses nor writes stamps; with -bench, of benchmarks")
	flags.StringVar(&o.agentBefore, "agent-before", "", "static program: the agent of another revision, for tests Revision_, which change to it and back; such a run neither uses nor writes stamps")
	flags.BoolVar(&o.all, "all", getenv("WAGGLE_ALL") == "1", "also run suites that have passed unchanged; the default is true if WAGGLE_ALL=1")
	flags.BoolVar(&o.bench, "bench", false, "count the instructions of benchmarks instead")
	flags.StringVar(&format, "o", "table", "output of -bench: table or json")
	flags.StringVar(&o.accel, "accel", "tcg", "accelerator of qemu; kvm is faster where it works, and hangs where it does not")
	flags.DurationVar(&o.timeout, "timeout", 40*time.Minute, "time limit of each kernel, boot to power-off")
	flags.StringVar(&o.cache, "cache", stamps.CacheDir(getenv), "folder that clones share, with kernels and stamps; the default is $WAGGLE_CACHE, else waggle in the user's cache folder")
	flags.StringVar(&o.out, "out", "bin/kernels", "folder for the programs and the output of the last run")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.cache == "" {
		return o, errors.New("-cache: no folder is known: set WAGGLE_CACHE or HOME")
	}
	if format != "table" && format != "json" {
		return o, fmt.Errorf("-o %s: want table or json", format)
	}
	o.json = format == "json"
	o.kernels = strings.Split(*kernels, ",")
	if *packages != "" {
		for p := range strings.SplitSeq(*packages, ",") {
			o.packages = append(o.packages, filepath.ToSlash(filepath.Clean(p)))
		}
	}
	return o, nil
}

// run determines the suites that must run on each kernel, then runs the machines with such suites concurrently.
func run(ctx context.Context, o options) error {
	begin := ownCPU()
	var runs []*kernelRun
	for _, series := range o.kernels {
		k, err := fetch(ctx, filepath.Join(o.cache, "kernels"), series)
		if err != nil {
			return err
		}
		chosen, err := choose(".", series, o)
		if err != nil {
			return err
		}
		runs = append(runs, newKernelRun(k, chosen, o))
	}
	if !slices.ContainsFunc(runs, func(r *kernelRun) bool { return len(r.chosen) > 0 }) {
		return fmt.Errorf("no suite of %s is in the table for these kernels; -run runs tests that are not", strings.Join(o.packages, ", "))
	}
	if err := skipUnchanged(ctx, runs, o); err != nil {
		return err
	}
	if err := buildAll(ctx, runs); err != nil {
		return err
	}
	prepared := ownCPU() - begin
	var wg sync.WaitGroup
	for _, r := range runs {
		wg.Go(func() { r.err = r.boot(ctx) })
	}
	wg.Wait()
	var errs []error
	var sum totals
	for _, r := range runs {
		r.report.summary(r.cpu)
		errs = append(errs, r.err, r.report.err(), r.leaveStamps())
		t := r.report.totals()
		sum.passed, sum.standing, sum.unchanged, sum.skipped = sum.passed+t.passed, sum.standing+t.standing, sum.unchanged+t.unchanged, sum.skipped+t.skipped
	}
	fmt.Printf("%.0f CPU s, %.0f of them to list and link programs\n", ownCPU()-begin, prepared)
	err := errors.Join(errs...)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, "the tests' events are in "+filepath.Join(o.out, "*", "tests.json"))
	}
	fmt.Printf("kernels: %d tests passed, %d tests in %d suites unchanged, %d skipped\n", sum.passed, sum.standing, sum.unchanged, sum.skipped)
	return err
}

// boot runs the remaining suites of a kernel in one machine. It does nothing if there are none. A machine that ends before the first event of a suite has run
// nothing but the kernel and the guest's init, so boot starts it once more: before [accelerator] gave its CPUs one thread, Linux 6.12 could panic there.
func (r *kernelRun) boot(ctx context.Context) error {
	if len(r.left) == 0 {
		return nil
	}
	events, err := os.Create(filepath.Join(r.dir, "tests.json"))
	if err != nil {
		return err
	}
	defer events.Close()
	err = r.bootUntilEvents(func() error {
		r.report.printLine("boot", "Linux %s, %d CPUs by %s", r.kernel.version, machineCPUs, r.hardware[1])
		cpu, err := r.start(ctx, func(output io.Reader, cpu func() float64) error {
			r.report.cpu = cpu
			return r.report.read(io.TeeReader(output, events))
		})
		r.cpu += cpu
		return err
	})
	if err == nil && r.report.totals().unfinished > 0 {
		err = fmt.Errorf("kernel %s: the machine was off too early; the end of its console, %s:\n%s", r.kernel.series, r.console(), lastLines(r.console()))
	}
	return err
}

// bootUntilEvents calls start, and a second time if the first machine turned itself off without an event of a suite. The console of the first is kept in
// console-1.log.
func (r *kernelRun) bootUntilEvents(start func() error) error {
	if err := start(); err != nil || r.report.began {
		return err
	}
	first := filepath.Join(r.dir, "console-1.log")
	if err := os.Rename(r.console(), first); err != nil {
		return fmt.Errorf("kernel %s: the machine was off before its first suite; keep its console: %w", r.kernel.series, err)
	}
	r.report.printLine("boot", "the machine was off before its first suite, and starts once more; the end of its console, %s:\n%s", first, lastLines(first))
	return start()
}

// console returns the path of the kernel's messages.
func (r *kernelRun) console() string { return filepath.Join(r.dir, "console.log") }

// start boots a machine with the remaining suites and passes the events of the suites to read.
func (r *kernelRun) start(ctx context.Context, read func(output io.Reader, cpu func() float64) error) (cpu float64, err error) {
	m := machine{kernel: r.kernel.image, initramfs: filepath.Join(r.dir, "initramfs"), console: r.console(),
		hardware: r.hardware, append: r.kernelArgs}
	files, err := r.fileSystem()
	if err == nil {
		err = files.write(m.initramfs)
	}
	if err != nil {
		return 0, err
	}
	defer os.Remove(m.initramfs) // as large as all programs together
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if cpu, err = m.run(ctx, read); err != nil {
		err = fmt.Errorf("kernel %s: %w; the end of its console, %s:\n%s", r.kernel.series, err, m.console, lastLines(m.console))
	}
	return cpu, err
}

// ownCPU returns the CPU time of this process and its terminated children, in seconds.
func ownCPU() (seconds float64) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err == nil { // cannot fail for these two values
			seconds += time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
		}
	}
	return seconds
}
