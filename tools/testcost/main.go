// Command testcost measures the cost of each top-level test in a process of its own, and marks expensive tests.
//
//	go run ./tools/testcost [-run REGEXP] [-sort cpu|idle|wall] [-o table|json] [-over] PACKAGE...
//
// With -over the exit status is 1 if a test over a limit is not in the list of expensive tests of test/tiers.
//
// CPU time includes all processes of a test, counted by a cgroup; without root it includes only processes that were waited for. Idle time is the time in which
// a test neither ran nor waited for a CPU: sleeps, timeouts, polling. The cost of TestMain is subtracted. With PROGRAMS_UNDER_TEST=$PWD/bin, TestMain of
// test/node does not build the programs.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	t := tool{}
	flag.StringVar(&t.run, "run", ".", "measure the tests whose name matches this regular expression")
	flag.StringVar(&t.order, "sort", "cpu", "order of the rows, the largest first: cpu, idle or wall")
	flag.StringVar(&t.output, "o", "table", "output format: table or json")
	flag.BoolVar(&t.over, "over", false, "print only tests over a limit, and fail if the list of test/tiers lacks one")
	flag.Float64Var(&t.limits.CPU, "cpu", 10, "limit of CPU time, in seconds")
	flag.Float64Var(&t.limits.Idle, "idle", 15, "limit of idle time, in seconds")
	flag.Parse()
	if flag.NArg() == 0 || !slices.Contains([]string{"cpu", "idle", "wall"}, t.order) || !slices.Contains([]string{"table", "json"}, t.output) {
		flag.Usage()
		os.Exit(2)
	}
	if err := t.main(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "testcost:", err)
		os.Exit(1)
	}
}

type tool struct {
	run, order, output string
	over               bool
	limits             limits
}

// main measures all packages and prints the rows. A package that cannot be measured does not prevent the rows of other packages.
func (t tool) main(patterns []string) error {
	dir, err := os.MkdirTemp("", "testcost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list, err := exec.Command("go", append([]string{"list", "-f", "{{.ImportPath}} {{.Dir}}"}, patterns...)...).Output()
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}
	var costs []cost
	var failures error
	for line := range strings.Lines(string(list)) {
		pkg, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		some, err := t.measure(pkg, folder, filepath.Join(dir, "package.test"))
		costs, failures = append(costs, some...), errors.Join(failures, err)
	}
	costs = rank(costs, t.order, t.limits)
	failures = errors.Join(failures, t.print(os.Stdout, costs))
	if t.over {
		listed, err := exec.Command("go", "run", "-trimpath", "-buildvcs=false", "./test/tiers", "-list", "expensive").Output()
		failures = errors.Join(failures, err, unlisted(costs, strings.Split(string(listed), "\n")))
	}
	return failures
}

// measure builds the test binary of a package and runs its tests, one process for each.
func (t tool) measure(pkg, folder, binary string) (costs []cost, err error) {
	_ = os.Remove(binary) // of the previous package
	if out, err := exec.Command("go", "test", "-c", "-o", binary, pkg).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the tests of %s: %w\n%s", pkg, err, out)
	}
	if _, err := os.Stat(binary); errors.Is(err, os.ErrNotExist) {
		return nil, nil // the package has no tests
	}
	start := func(args ...string) (cost, string, error) {
		cmd := exec.Command(binary, append(args, "-test.timeout=10m")...)
		cmd.Dir = folder
		return runAlone(cmd)
	}
	_, names, err := start("-test.list=" + t.run) // also fills the build cache if TestMain builds programs
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w\n%s", pkg, err, names)
	}
	base, out, err := start("-test.run=^$")
	if err != nil {
		return nil, fmt.Errorf("run no test of %s: %w\n%s", pkg, err, out)
	}
	for name := range strings.FieldsSeq(names) {
		if !strings.HasPrefix(name, "Test") {
			continue
		}
		c, out, err := start("-test.v", "-test.run=^"+name+"$")
		c = c.less(base)
		c.Package, c.Test, c.Result = pkg, name, resultOf(name, out, err)
		fmt.Fprintf(os.Stderr, "%s %s: %s, %.1f s, %.1f CPU-s\n", pkg, name, c.Result, c.Wall, c.CPU)
		if c.Result == "fail" {
			fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		}
		costs = append(costs, c)
	}
	return costs, nil
}

func (t tool) print(w io.Writer, costs []cost) error {
	if t.over {
		costs = slices.DeleteFunc(costs, func(c cost) bool { return len(c.Over) == 0 })
	}
	if t.output == "json" {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(append([]cost{}, costs...))
	}
	table := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CPU-S\tIDLE S\tWALL S\tRESULT\tOVER\tTEST\tPACKAGE\t")
	for _, c := range costs {
		fmt.Fprintf(table, "%.1f\t%.1f\t%.1f\t%s\t%s\t%s\t%s\t\n", c.CPU, c.Idle, c.Wall, c.Result, cmp.Or(strings.Join(c.Over, ","), "-"), c.Test, c.Package)
	}
	return table.Flush()
}
