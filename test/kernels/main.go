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
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	kernels  []string      // such as "6.1"
	packages []string      // of the tree; empty means all that [discover] finds
	run      string        // tests to run; "" means what each suite says
	accel    string        // qemu's accelerator
	timeout  time.Duration // for each machine, boot to power-off
	cache    string        // holds kernels, and what the last run made and said
}

func main() {
	if os.Getpid() == 1 {
		guest() // never returns
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, parse()); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func parse() options {
	var o options
	kernels := flag.String("kernels", "6.1,6.12", "kernels to test, by comma")
	packages := flag.String("packages", "", "packages to test, by comma, such as bpf,cells/loader; all that need a kernel when empty")
	flag.StringVar(&o.run, "run", "", "regular expression of tests to run, in place of all that need a kernel")
	flag.StringVar(&o.accel, "accel", "tcg", "qemu's accelerator; kvm is faster where it works, and hangs where it does not")
	flag.DurationVar(&o.timeout, "timeout", 20*time.Minute, "for each kernel, boot to power-off")
	flag.StringVar(&o.cache, "cache", "bin/kernels", "folder for kernels and for what the last run made and said")
	flag.Parse()
	o.kernels = strings.Split(*kernels, ",")
	if *packages != "" {
		o.packages = strings.Split(*packages, ",")
	}
	return o
}

// run makes everything, then lets all machines run at once.
func run(ctx context.Context, o options) error {
	suites, err := chooseSuites(".", o)
	if err != nil {
		return err
	}
	var kernels []*kernel
	for _, series := range o.kernels {
		k, err := fetch(ctx, filepath.Join(o.cache, series), series)
		if err != nil {
			return err
		}
		kernels = append(kernels, k)
	}
	root := filepath.Join(o.cache, "root")
	if err := build(ctx, root, suites); err != nil {
		return err
	}
	var wg sync.WaitGroup
	reports := make([]*report, len(kernels))
	errs := make([]error, len(kernels))
	for i, k := range kernels {
		reports[i] = newReport(k.series, suites, os.Stdout)
		wg.Go(func() { errs[i] = test(ctx, k, root, reports[i], o) })
	}
	wg.Wait()
	for i, r := range reports {
		r.summary()
		errs[i] = errors.Join(errs[i], r.err())
	}
	return errors.Join(errs...)
}

// test boots one machine and reads what it says until it is off.
func test(ctx context.Context, k *kernel, root string, r *report, o options) error {
	m := machine{kernel: k.image, initramfs: filepath.Join(k.dir, "initramfs"), console: filepath.Join(k.dir, "console.log"), accel: o.accel}
	if err := writeInitramfs(m.initramfs, root, k); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r.say("boot", "Linux %s, %d CPUs by %s", k.version, machineCPUs, o.accel)
	said, err := os.Create(filepath.Join(k.dir, "tests.json"))
	if err != nil {
		return err
	}
	defer said.Close()
	if err := m.run(ctx, func(output io.Reader) error { return r.read(io.TeeReader(output, said)) }); err != nil {
		return fmt.Errorf("kernel %s: %w; the end of its console, %s:\n%s", k.series, err, m.console, lastLines(m.console))
	}
	return nil
}
