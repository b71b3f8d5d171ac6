package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/kernels/plan"
)

// privileged is the prefix of the names of tests that need a kernel.
const privileged = "TestPrivileged"

// suite is a row of the table of suites: tests of one package that run on some kernels.
type suite struct {
	pkg      string // folder in the tree, with slashes
	kernels  string // space-separated series
	tests    string // regular expression for the complete test name after TestPrivileged
	modules  string // space-separated modules that are loaded for this suite in addition to [baseModules]
	programs string // space-separated programs under test that the suite runs
	alone    bool   // one test at a time: each test uses all CPUs of an emulated machine

	benchmarks string // regular expression of benchmarks that run instead of tests
}

// omission is a row of the table of omissions: tests that do not run on some kernels, and the reason.
type omission struct {
	pkg     string // folder in the tree; the suffix /... includes all folders below
	kernels string // space-separated series
	tests   string // as in a suite
	reason  string
}

// allowedSkip is a row of the table of tests that may skip themselves on some kernels. A skip without a row fails the run, and so does a row whose test runs.
type allowedSkip struct {
	pkg, kernels string
	test         string // including the names of subtests
	reason       string
}

// on reports whether a row's list of kernels contains a series.
func on(kernels, series string) bool { return slices.Contains(strings.Fields(kernels), series) }

// whole compiles the regular expression of a row, anchored at both ends.
func whole(tests string) (*regexp.Regexp, error) {
	return regexp.Compile("^" + privileged + "(" + tests + ")$")
}

// covers reports whether the row applies to a package.
func (o omission) covers(pkg string) bool {
	if above, all := strings.CutSuffix(o.pkg, "/..."); all {
		return pkg == above || strings.HasPrefix(pkg, above+"/")
	}
	return pkg == o.pkg
}

// suiteLimit is the timeout of a suite. A hanging suite then prints the stacks of its goroutines before its machine's timeout. With other load on two CPUs,
// the longest suite takes seven to eleven minutes.
const suiteLimit = 30 * time.Minute

// planned returns the suite for the machine, without its modules, which differ between kernels.
func (s suite) planned() plan.Suite {
	parallel := machineCPUs // the default of some packages is higher, and emulated CPUs are slow
	if s.alone {
		parallel = 1
	}
	args := []string{"-test.run=^" + privileged + "(" + s.tests + ")$", fmt.Sprintf("-test.timeout=%s", suiteLimit), fmt.Sprintf("-test.parallel=%d", parallel)}
	if s.benchmarks != "" {
		args = []string{"-test.run=^$", "-test.bench=" + s.benchmarks, fmt.Sprintf("-test.benchtime=%dx", rounds), "-test.timeout=60m"}
	}
	env := []string{testnet.EmulatedEnv + "=1", plan.ModulesEnv + "=" + s.modules}
	if seed := os.Getenv(testseed.Env); seed != "" { // part of the suite, so that a stamp of another seed is not valid
		env = append(env, testseed.Env+"="+seed)
	}
	return plan.Suite{Package: s.pkg, Programs: strings.Fields(s.programs), Args: args, Env: env}
}

// binary returns the import path of the suite's test binary.
func (s suite) binary() string { return module + "/" + s.pkg + ".test" }

// choose returns the suites of a kernel that the command line selects. A regular expression on the command line may select any package with privileged tests;
// the table provides the modules and programs.
func choose(tree, series string, o options) ([]suite, error) {
	var chosen []suite
	for _, s := range suites {
		if on(s.kernels, series) {
			chosen = append(chosen, s)
		}
	}
	if o.run == "" && len(o.packages) == 0 {
		return chosen, nil
	}
	tests, err := discover(tree)
	if err != nil {
		return nil, err
	}
	if o.run != "" {
		return chooseTests(tests, o)
	}
	for _, p := range o.packages {
		if tests[p] == nil {
			return nil, fmt.Errorf("package %s: it has no test whose name begins with %s", p, privileged)
		}
	}
	return slices.DeleteFunc(chosen, func(s suite) bool { return !slices.Contains(o.packages, s.pkg) }), nil
}

// chooseTests returns suites of the tests that match a regular expression, in the given packages or in all.
func chooseTests(tests map[string][]string, o options) (chosen []suite, err error) {
	wanted, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	for pkg, names := range tests {
		if len(o.packages) > 0 && !slices.Contains(o.packages, pkg) || strings.HasPrefix(pkg, "test/kube") {
			continue
		}
		var found []string
		for _, name := range names {
			if wanted.MatchString(name) {
				found = append(found, strings.TrimPrefix(name, privileged))
			}
		}
		if len(found) == 0 {
			continue
		}
		s := suite{pkg: pkg, tests: strings.Join(found, "|")}
		if i := slices.IndexFunc(suites, func(s suite) bool { return s.pkg == pkg }); i >= 0 {
			s.modules, s.programs, s.alone = suites[i].modules, suites[i].programs, suites[i].alone
		}
		chosen = append(chosen, s)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %s: no test whose name begins with %s matches", o.run, privileged)
	}
	slices.SortFunc(chosen, func(a, b suite) int { return strings.Compare(a.pkg, b.pkg) })
	return chosen, nil
}

// declaration matches declarations of privileged tests.
var declaration = regexp.MustCompile(`(?m)^func (` + privileged + `\w*)\(`)

// discover returns the privileged tests by the folder of their package.
func discover(tree string) (map[string][]string, error) {
	tests := map[string][]string{}
	err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == "bin" || strings.HasPrefix(entry.Name(), ".") && name != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		folder := filepath.ToSlash(filepath.Dir(name))
		for _, match := range declaration.FindAllSubmatch(source, -1) {
			tests[folder] = append(tests[folder], string(match[1]))
		}
		return err
	})
	return tests, err
}
