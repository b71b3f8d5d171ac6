package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
)

// tooMuch is the factor of the budget above which a tier fails. On a machine where the tests of the datapath take 1.7 times the CPU time of the machine on
// which the budgets were measured, a process start took the same: the slowness covers only a part of what differs between machines.
const tooMuch = 2

// slowAnywhere is a limit that no inexpensive test exceeds on any machine, beside two busy processes.
const slowAnywhere = 90 * time.Second

// check adds violations of the lists and of the budget to a verdict, and returns warnings.
func (v *verdict) check(strict bool) (warnings []string) {
	for _, s := range v.skips {
		reason := strings.TrimSpace(s.output)
		switch {
		case permittedSkips[testOf(s.name)] != "":
		case strict:
			v.failed = append(v.failed, fmt.Sprintf("%s was skipped, and is not in the list of permitted skips:\n%s", s.name, reason))
		default:
			warnings = append(warnings, fmt.Sprintf("%s was skipped: %s", s.name, reason))
		}
	}
	for _, s := range v.slow {
		text := fmt.Sprintf("%s took %s and is not in the list of expensive tests", s.name, s.took.Round(time.Second))
		switch {
		case isExpensive(s.name) || v.slowParent(s.name):
		case s.took > slowAnywhere:
			v.failed = append(v.failed, text)
		default:
			warnings = append(warnings, text)
		}
	}
	used := fmt.Sprintf("used %.0f s of CPU time; its budget on this machine is %.0f s (%.0f s in the table of tiers, slowness %.2f)",
		v.cpu.Seconds(), v.budget().Seconds(), v.tier.budget.Seconds(), v.slowness)
	switch share := float64(v.cpu) / float64(v.budget()); {
	case share > tooMuch:
		v.failed = append(v.failed, used)
	case share > 1:
		warnings = append(warnings, used)
	}
	return warnings
}

// budget returns the permitted CPU time of the tier on this machine.
func (v *verdict) budget() time.Duration {
	if !v.tier.scaled {
		return v.tier.budget
	}
	return time.Duration(float64(v.tier.budget) * v.slowness)
}

// isExpensive reports whether the list of expensive tests has a row for a test, or a row of its parent for all subtests.
func isExpensive(name string) bool {
	name = testOf(name)
	parent, _, sub := strings.Cut(name[strings.LastIndex(name, " ")+1:], "/")
	all := name[:strings.LastIndex(name, " ")+1] + parent + "/*"
	return expensive[name] != "" || sub && expensive[all] != ""
}

// slowParent reports whether a subtest's parent is slow and not in the list: one finding is enough. The time of parallel subtests is not part of their
// parent's.
func (v *verdict) slowParent(name string) bool {
	pkg, test, _ := strings.Cut(name, " ")
	parent, _, sub := strings.Cut(test, "/")
	parent = pkg + " " + parent
	return sub && !isExpensive(parent) && slices.ContainsFunc(v.slow, func(s outcome) bool { return s.name == parent })
}

// testOf converts the name of a package and a test to the format of the lists: "bpf TestX".
func testOf(name string) string {
	return strings.TrimPrefix(name, module+"/")
}

const module = "github.com/waggle-net/waggle"

// failure prints the failed parts of a tier, the seed of its tests, and the condition of the machine at the first failure.
func (v *verdict) failure(out io.Writer, seed string) {
	fmt.Fprintf(out, "\n%s FAILED:\n", v.tier.name)
	for _, f := range v.failed {
		fmt.Fprintf(out, "  %s\n", strings.ReplaceAll(f, "\n", "\n    "))
	}
	if seed != "" {
		fmt.Fprintf(out, "  seed: %s=%s\n", testseed.Env, seed)
	}
	fmt.Fprintf(out, "  %s\n", strings.ReplaceAll(v.condition, "\n", "\n  "))
}

// summary prints a line for each tier, then the beginning of each failure, so that the end of the output names them, then the numbers of passed, failed and skipped tests. The total time is the duration of the run, in which the tiers of
// a stage overlap.
func summary(out io.Writer, all []verdict, took time.Duration) (ok bool) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\ntier\ttests run\tcached\tskipped\tfailed\tpackages\tcached\tminutes\tCPU-s\tbudget\tslowness\t\t\n")
	var sum counts
	var cpu time.Duration
	for _, v := range all {
		result := "ok"
		if len(v.failed) > 0 {
			result = "FAILED"
		}
		c := v.counts
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t%.0f\t%.0f\t%.2f\t%s\t\n", v.tier.name, c.run, c.cached, c.skipped, c.failed, c.packages,
			c.cachedPackages, v.took.Minutes(), v.cpu.Seconds(), v.budget().Seconds(), v.slowness, result)
		sum.add(c)
		cpu += v.cpu
	}
	fmt.Fprintf(t, "all\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t%.0f\t\t\t\t\n", sum.run, sum.cached, sum.skipped, sum.failed, sum.packages, sum.cachedPackages,
		took.Minutes(), cpu.Seconds())
	_ = t.Flush()
	for _, v := range all {
		for _, f := range v.failed {
			lines := strings.Split(f, "\n")
			fmt.Fprintf(out, "\n%s: %s\n", v.tier.name, strings.Join(lines[:min(failureLines, len(lines))], "\n  "))
		}
	}
	failed := slices.ContainsFunc(all, func(v verdict) bool { return len(v.failed) > 0 })
	if failed {
		sum.failed = max(sum.failed, 1)
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", sum.run+sum.cached, sum.failed, sum.skipped)
	return !failed
}
