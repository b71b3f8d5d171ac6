package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kernels/plan"
)

// benchmarks lists the benchmarks whose instructions are counted. They report the time per packet of a program, with and without the time of an empty
// program.
var benchmarks = suite{pkg: "bpf/tests", kernels: both, benchmarks: "^Benchmark(Prog|Flow)$"}

// rounds is the number of times that each benchmark runs its two programs, with 60 packets each. The benchmark reports the smallest count.
const rounds = 25

// counting configures a machine whose clock advances by one nanosecond per instruction and skips the time in which its only CPU would sleep: a reported
// nanosecond is one instruction, regardless of the load of this machine.
var counting = []string{"-icount", "shift=0,sleep=off,align=off", "-rtc", "base=2026-01-01,clock=vm"}

// countingArgs disable randomization at boot, which would change the counts.
const countingArgs = kernelArgs + " nokaslr norandmaps"

// benchmark is the result of one benchmark.
type benchmark struct {
	Name         string  `json:"name"`
	Instructions int     `json:"instructions"` // per packet, including the test run's overhead
	Net          int     `json:"net"`          // without the instructions of an empty program
	Ratio        float64 `json:"ratio"`        // relative to an empty program
}

// ratio compares the net instructions of two benchmarks.
type ratio struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// counts holds the results on one kernel.
type counts struct {
	Kernel     string      `json:"kernel"`
	Benchmarks []benchmark `json:"benchmarks"`
	Ratios     []ratio     `json:"ratios"`
}

// runBenchmarks counts the instructions of the benchmarks on all kernels and prints them.
func runBenchmarks(ctx context.Context, o options, out io.Writer) error {
	all := make([]counts, len(o.kernels))
	var runs []*kernelRun
	for _, series := range o.kernels {
		k, err := fetch(ctx, filepath.Join(o.cache, "kernels"), series)
		if err != nil {
			return err
		}
		chosen := benchmarks
		if o.run != "" {
			chosen.benchmarks = o.run
		}
		r := newKernelRun(k, []suite{chosen}, o)
		// The programs run on packets and need only links to refer to. Each further module costs the slow machine a second.
		if r.base, err = k.loadOrder(ctx, []string{"veth"}); err != nil {
			return err
		}
		r.dir, r.left, r.hardware, r.kernelArgs = filepath.Join(o.out, "bench-"+series), r.chosen, hardware("tcg", 1, counting...), countingArgs
		runs = append(runs, r)
	}
	if err := buildAll(ctx, runs); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, r := range runs {
		group.Go(func() (err error) {
			all[i], err = r.count(ctx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if o.json {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(all)
	}
	return printCounts(out, all)
}

// count runs the benchmarks on one kernel.
func (r *kernelRun) count(ctx context.Context) (c counts, err error) {
	var text string
	if _, err = r.start(ctx, func(output io.Reader, _ func() float64) error {
		text, err = benchmarkText(output)
		return err
	}); err != nil {
		return c, err
	}
	c = counts{Kernel: r.kernel.version, Benchmarks: parseBenchmarks(text)}
	if len(c.Benchmarks) == 0 {
		return c, fmt.Errorf("kernel %s: no benchmark has a result:\n%s", r.kernel.series, text)
	}
	c.Ratios = ratios(c.Benchmarks)
	return c, nil
}

// benchmarkText returns the output of the test binary.
func benchmarkText(output io.Reader) (string, error) {
	var text bytes.Buffer
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e plan.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return "", fmt.Errorf("read the events of the benchmarks: %w: %q", err, lines.Text())
		}
		text.WriteString(e.Output)
		switch e.Action {
		case plan.Failed:
			return "", fmt.Errorf("the benchmarks failed:\n%s", &text)
		case plan.Passed:
			return text.String(), nil
		}
	}
	return "", errors.Join(lines.Err(), fmt.Errorf("the machine was off before the benchmarks ended:\n%s", &text))
}

// result lines of a benchmark: its name, the number of rounds, values with their units.
var resultLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.* ns/packet.*)$`)

func parseBenchmarks(text string) (all []benchmark) {
	for _, line := range resultLine.FindAllStringSubmatch(text, -1) {
		b := benchmark{Name: line[1]}
		for fields := strings.Fields(line[2]); len(fields) >= 2; fields = fields[2:] {
			value, _ := strconv.ParseFloat(fields[0], 64)
			switch fields[1] {
			case "ns/packet":
				b.Instructions = int(value)
			case "ns/packet-net":
				b.Net = int(value)
			}
		}
		if empty := b.Instructions - b.Net; empty > 0 {
			b.Ratio = float64(b.Instructions) / float64(empty)
			all = append(all, b)
		}
	}
	return all
}

// ratios compares the first packet of a flow with a packet of the same flow after it is established.
func ratios(all []benchmark) (found []ratio) {
	for _, first := range all {
		kind, isNew := strings.CutPrefix(first.Name, "Flow/new/")
		for _, other := range all {
			if isNew && other.Name == "Flow/established/"+kind && other.Net > 0 {
				found = append(found, ratio{"new to established, " + kind, float64(first.Net) / float64(other.Net)})
			}
		}
	}
	return found
}

func printCounts(out io.Writer, all []counts) error {
	for _, c := range all {
		fmt.Fprintf(out, "Linux %s, instructions per packet\n", c.Kernel)
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "whole\tnet\tto empty\t  program\n")
		for _, b := range c.Benchmarks {
			fmt.Fprintf(w, "%d\t%d\t%.3f\t  %s\n", b.Instructions, b.Net, b.Ratio, b.Name)
		}
		for _, r := range c.Ratios {
			fmt.Fprintf(w, "\t\t%.3f\t  %s\n", r.Value, r.Name)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
