package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
)

// figure is a value that benchmarks of a package report: the unit in their output, the name in this report, and the budget.
type figure struct {
	benchmark string // prefix of the benchmark's name
	unit      string
	what      string
	budget    figures.Limit
	quantity  quantity
}

// quantity defines how values with a unit of package testing are printed, and in which unit budgets limit them.
type quantity struct {
	show  func(value float64) string
	value func(value float64) figures.Value
}

// Quantities of benchmarks by their reported unit.
var (
	nanoseconds  = quantity{func(v float64) string { return fmt.Sprintf("%.0f ns", v) }, valueIn(figures.NanoSec, 1)}
	durations    = timesOf(time.Nanosecond)
	microseconds = timesOf(time.Microsecond)
	kilobytes    = quantity{func(v float64) string { return fmt.Sprintf("%.2f KB", v/1e3) }, valueIn("KB", 1e-3)}
)

func timesOf(unit time.Duration) quantity {
	return quantity{func(v float64) string { return show(time.Duration(v * float64(unit))) }, valueIn(figures.Second, unit.Seconds())}
}

func counts(unit string) quantity {
	return quantity{func(v float64) string { return fmt.Sprintf("%.0f", v) }, valueIn(unit, 1)}
}

func valueIn(unit string, scale float64) func(float64) figures.Value {
	return func(v float64) figures.Value { return figures.Value{Number: v * scale, Unit: unit} }
}

// programs measures the time per packet of the programs and of comparable rules, and the programs' cost in the verifier.
func (b *bench) programs(ctx context.Context) error {
	if err := b.verified(ctx); err != nil {
		return err
	}
	if err := b.goBench(ctx, "./bpf/tests", ".", []figure{
		{"Flow/established/", "ns/packet-net", "per packet, established flow", establishedBudget, nanoseconds},
		{"Flow/established/", "ns/packet-kernel", "of which the kernel's look-ups and redirect", unlimited, nanoseconds},
		{"Flow_OneSided/", "ns/packet-net", "per packet", oneSidedBudget, nanoseconds},
		{"Flow/new/", "ns/packet-net", "per packet, new flow", newFlowBudget, nanoseconds},
		{"Prog/", "ns/packet-net", "per packet", packetBudget, nanoseconds},
		{"TwoCPUs/", "ns/packet-one-flow", "per packet, two CPUs with one flow", unlimited, nanoseconds},
		{"TwoCPUs/", "ns/packet-flow-each", "the same with a flow each", unlimited, nanoseconds},
	}); err != nil {
		return err
	}
	return b.goBench(ctx, "./pkg/datapath/nftguard", "FromNetwork", []figure{
		{"FromNetwork/", "ns/packet-one-lookup", "rules, per packet from the network", unlimited, nanoseconds},
		{"FromNetwork/", "ns/packet-two-lookups", "the same with a look-up for each check", unlimited, nanoseconds},
	})
}

// attribute matches an attribute that the tests of the programs print: the instructions that the verifier processed, in the routing mode in which they are
// most, and the maximum stack depth in bytes.
var attribute = regexp.MustCompile(`(?m)^ *=== ATTR +\S+ (verifier|stack):(\S+) (\d+) `)

// verified prints the verifier's figures for each packet program, including its steps. Socket programs are far below all budgets.
func (b *bench) verified(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-count", "1", "-v", "-run", "Programs_(PassTheVerifier|FitTheStackOfLinux61)$", "./bpf/tests").CombinedOutput()
	found := attribute.FindAllStringSubmatch(string(out), -1)
	slices.SortFunc(found, func(x, y []string) int { return slices.Compare(x[1:3], y[1:3]) })
	for _, f := range found {
		kind, program, n := f[1], f[2], f[3]
		value, parsed := strconv.ParseFloat(n, 64)
		if parsed != nil {
			return fmt.Errorf("read %q: %w", f[0], parsed)
		}
		switch {
		case strings.HasPrefix(program, "sock_"):
		case kind == "stack":
			b.report("stack on Linux 6.1, "+program, n, figures.Value{Number: value, Unit: "bytes"}, stackBudget)
		default:
			b.report("instructions verified, "+program, n, figures.Value{Number: value, Unit: "instructions"}, instructionsBudget)
		}
	}
	if err != nil || len(found) == 0 {
		return fmt.Errorf("ask the verifier about the programs: %w\n%s", err, out)
	}
	return nil
}

// compiler measures the compilation of policies to entries. Only cell policymaps uses the compiler.
func (b *bench) compiler(ctx context.Context) error {
	if err := b.goBench(ctx, "./pkg/policy/policycompiler", "Resolve|OneIdentity|AllPods|OnePolicy|Memory", []figure{
		{"Resolve/", "ns/op", "3,000 rules, 1,000 identities", resolveBudget, durations},
		{"Resolve/", "entries", "entries of that", unlimited, counts("entries")},
		{"OneIdentity/", "us/identity", "one identity more or less", oneIdentityBudget, microseconds},
		{"AllPods/", "entries", "entries of 50 rules about all pods", unlimited, counts("entries")},
		{"AllPods/", "us/identity", "one identity more or less, 50 rules about all pods", oneIdentityBudget, microseconds},
		{"OnePolicy/", "ns/op", "one rule changed", unlimited, durations},
		{"Memory/", "KB", "heap of that, KB", unlimited, counts("KB")},
	}); err != nil {
		return err
	}
	return b.goBench(ctx, "./cells/policy/policymaps", "Add", []figure{
		{"Add/", "ns/op", "pass of an ADD, 250 endpoints, 500 policies", unlimited, durations},
	})
}

// serviceMaps measures the path of services from Kubernetes rows to real maps.
func (b *bench) serviceMaps(ctx context.Context) error {
	return b.goBench(ctx, "./cells/service/servicemaps", "Privileged", []figure{
		{"PrivilegedServices", "ns/sync", "50,000 services, from rows of Kubernetes into maps, cold", servicesBudget, durations},
		{"PrivilegedServices", "ns/told", "and until the table says so", unlimited, durations},
		{"PrivilegedServices", "ns/cpu", "and processor time of that", unlimited, durations},
		{"PrivilegedServices", "heap-B/kubernetes", "heap of the rows of Kubernetes, for each", unlimited, kilobytes},
		{"PrivilegedServices", "heap-B/service", "and of all, for each", serviceHeapBudget, kilobytes},
		{"PrivilegedServices", "ns/change-p50", "one change of them, until it is in the map, p50", unlimited, durations},
		{"PrivilegedServices", "ns/change-p99", "and p99 of that", serviceChangeBudget, durations},
		{"PrivilegedSharedBackends", "ns/change-p50", "one of 10 backends of 2,000 services, until all are in the maps, p50", unlimited, durations},
		{"PrivilegedSharedBackends", "ns/change-p99", "and p99 of that", sharedBackendBudget, durations},
		{"PrivilegedLargeService/single", "ns/change-p50", "one of 10,000 endpoints of a service, until it is in the maps, p50", unlimited, durations},
		{"PrivilegedLargeService/single", "ns/change-p99", "and p99 of that", largeServiceBudget, durations},
		{"PrivilegedLargeService/one_after_another", "ns/change-p99", "and p99 of 50 such changes one after another", unlimited, durations},
		{"PrivilegedRestart", "ns/op", "50,000 services, tables to maps that have them", unlimited, durations},
	})
}

// serviceChanges measures how the cell of services processes changes of backends that many services share, and of a service with many backends.
func (b *bench) serviceChanges(ctx context.Context) error {
	return b.goBench(ctx, "./cells/service/servicecontroller", "SharedBackends|SliceEvent|LargeService|ServicesOfTheNode", []figure{
		{"SharedBackends/", "ns/op", "one of 10 backends of 2,000 services", sharedBackendBudget, durations},
		{"SliceEvent", "ns/pass-p50", "one slice of these services, p50", unlimited, durations},
		{"SliceEvent", "ns/pass-p99", "and p99 of that", sliceEventBudget, durations},
		{"LargeService", "ns/pass-p50", "one of 10,000 endpoints of a service, p50", largeServiceBudget, durations},
		{"LargeService", "ns/pass-p99", "and p99 of that", unlimited, durations},
		{"ServicesOfTheNode", "ns/commit-max", "another address of the node, 10,000 NodePort services, longest commit", unlimited, durations},
	})
}

// goBench runs benchmarks of a package three times and prints the medians of their figures.
func (b *bench) goBench(ctx context.Context, pkg, which string, figures []figure) error {
	m, err := runBenchmarks(ctx, pkg, which)
	if err != nil {
		return err
	}
	return b.reportMedians(m, figures)
}

// goTest runs tests of a package and prints the figures in their attributes: counts, which are the same in each run. A failed test may have reported figures.
func (b *bench) goTest(ctx context.Context, pkg, which string, figures []figure) error {
	m, err := runTests(ctx, pkg, which)
	if len(m.values) == 0 && err != nil {
		return err
	}
	return errors.Join(b.reportMedians(m, figures), err)
}

// measured is the output of benchmarks or tests of a package, with the values in it by name and unit.
type measured struct {
	pkg, output string
	values      map[string]map[string][]float64
}

// runBenchmarks runs benchmarks of a package three times.
func runBenchmarks(ctx context.Context, pkg, which string) (measured, error) {
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", which, "-benchtime", "300ms", "-count", "3", pkg).CombinedOutput()
	if err != nil {
		return measured{}, fmt.Errorf("go test -bench %s %s: %w\n%s", which, pkg, err, out)
	}
	return measured{pkg, string(out), benchmarkValues(string(out))}, nil
}

// runTests runs tests of a package once, as in a soak. After a failed test it returns both the values and an error.
func runTests(ctx context.Context, pkg, which string) (measured, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-count", "1", "-v", "-run", which, pkg)
	cmd.Env = append(os.Environ(), "WAGGLE_TEST_SOAK=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go test -run %s %s: %w\n%s", which, pkg, err, out)
	}
	return measured{pkg, string(out), attributeValues(string(out))}, err
}

// reportMedians prints the medians of figures.
func (b *bench) reportMedians(m measured, figures []figure) error {
	for _, f := range figures {
		found := false
		for _, name := range slices.Sorted(maps.Keys(m.values)) {
			rest, is := strings.CutPrefix(name, f.benchmark)
			middle, has := m.middle(name, f.unit)
			if !is || !has {
				continue
			}
			found = true
			b.report(strings.TrimSuffix(f.what+", "+strings.ReplaceAll(rest, "_", " "), ", "), f.quantity.show(middle), f.quantity.value(middle), f.budget)
		}
		if !found {
			return fmt.Errorf("no figure %q of %s in the output of %s:\n%s", f.unit, f.benchmark, m.pkg, m.output)
		}
	}
	return nil
}

// middle returns the median of the values with a name and a unit, and whether there are any.
func (m measured) middle(name, unit string) (float64, bool) {
	list := m.values[name][unit]
	if len(list) == 0 {
		return 0, false
	}
	slices.Sort(list)
	return list[(len(list)-1)/2], true
}

var (
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s(.*)$`)
	benchmarkUnit = regexp.MustCompile(`([\d.]+(?:e[+-]\d+)?) (\S+)`)
	// numberLine matches an attribute of a test whose value begins with a number: the test, the key and the number.
	numberLine = regexp.MustCompile(`(?m)^ *=== ATTR +Test(\S+) (\S+) ([\d.]+)(?: .*)?$`)
)

// benchmarkValues parses the output of "go test -bench": values by benchmark and unit.
func benchmarkValues(output string) map[string]map[string][]float64 {
	values := map[string]map[string][]float64{}
	for _, line := range benchmarkLine.FindAllStringSubmatch(output, -1) {
		if values[line[1]] == nil {
			values[line[1]] = map[string][]float64{}
		}
		for _, one := range benchmarkUnit.FindAllStringSubmatch(line[2], -1) {
			if value, err := strconv.ParseFloat(one[1], 64); err == nil { // the regular expression matches only numbers
				values[line[1]][one[2]] = append(values[line[1]][one[2]], value)
			}
		}
	}
	return values
}

// attributeValues parses the output of "go test -v": numbers in attributes by test and key.
func attributeValues(output string) map[string]map[string][]float64 {
	values := map[string]map[string][]float64{}
	for _, line := range numberLine.FindAllStringSubmatch(output, -1) {
		if values[line[1]] == nil {
			values[line[1]] = map[string][]float64{}
		}
		if value, err := strconv.ParseFloat(line[3], 64); err == nil {
			values[line[1]][line[2]] = append(values[line[1]][line[2]], value)
		}
	}
	return values
}
