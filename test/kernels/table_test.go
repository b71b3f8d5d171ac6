package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// allKernels returns the series that the tables may use.
func allKernels() []string { return slices.Sorted(maps.Keys(metaPackages)) }

// Each privileged test is in the table of suites or of omissions exactly once for each kernel; no part of a row refers to a removed test.
func TestTables_AreComplete(t *testing.T) {
	t.Parallel()
	tests, err := discover("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) < 20 {
		t.Fatalf("only %d packages with tests that need a kernel were found: the search is broken", len(tests))
	}
	for _, fault := range faultsOf(tests, suites, omissions, allowedSkips) {
		t.Error(fault)
	}
}

// faultsOf compares the tables with the tests in the tree.
func faultsOf(tests map[string][]string, suites []suite, omissions []omission, skips []allowedSkip) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var rows []omission // of both tables; rows of suites have no reason
	for _, s := range suites {
		rows = append(rows, omission{s.pkg, s.kernels, s.tests, ""})
	}
	for _, o := range omissions {
		if o.reason == "" {
			fault("omission %s %s: it has no reason", o.pkg, o.tests)
		}
	}
	rows = append(rows, omissions...)
	patterns := make([]*regexp.Regexp, len(rows))
	for i, row := range rows {
		faults = append(faults, faultsOfRow(row, tests)...)
		pattern, err := whole(row.tests)
		if err != nil {
			return append(faults, err.Error())
		}
		patterns[i] = pattern
	}
	for _, series := range allKernels() {
		for _, pkg := range slices.Sorted(maps.Keys(tests)) {
			for _, test := range tests[pkg] {
				n := 0
				for i, row := range rows {
					if row.covers(pkg) && on(row.kernels, series) && patterns[i].MatchString(test) {
						n++
					}
				}
				if n != 1 {
					fault("%s %s stands in %d rows for kernel %s, want one: add it to the table of suites, or with a reason to that of omissions", pkg, test, n, series)
				}
			}
		}
	}
	for _, s := range skips {
		top, _, _ := strings.Cut(s.test, "/")
		if s.reason == "" || !slices.Contains(tests[s.pkg], top) {
			fault("allowed skip %s %s: it has no reason, or the test does not exist", s.pkg, s.test)
		}
		faults = append(faults, faultsOfKernels(s.pkg+" "+s.test, s.kernels)...)
	}
	return faults
}

// faultsOfRow requires that each alternative of a row's regular expression matches a test.
func faultsOfRow(row omission, tests map[string][]string) (faults []string) {
	name := row.pkg + " " + row.tests
	for _, alternative := range alternatives(row.tests) {
		pattern, err := whole(alternative)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		found := false
		for pkg, names := range tests {
			found = found || row.covers(pkg) && slices.ContainsFunc(names, pattern.MatchString)
		}
		if !found {
			faults = append(faults, fmt.Sprintf("%s: no test is called %s", name, pattern))
		}
	}
	return append(faults, faultsOfKernels(name, row.kernels)...)
}

func faultsOfKernels(name, kernels string) (faults []string) {
	if kernels == "" {
		faults = append(faults, name+": it names no kernel")
	}
	for series := range strings.FieldsSeq(kernels) {
		if metaPackages[series] == "" {
			faults = append(faults, fmt.Sprintf("%s: kernel %s is not known", name, series))
		}
	}
	return faults
}

// alternatives splits a regular expression at its outer |, and at the | of one group with a common prefix: "A_.*|B_(C|D)" becomes A_.*, B_C and B_D.
func alternatives(tests string) (all []string) {
	depth, begin := 0, 0
	for i, c := range tests + "|" {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			all = append(all, expand(tests[begin:i])...)
			begin = i + 1
		}
	}
	return all
}

func expand(one string) (all []string) {
	before, rest, found := strings.Cut(one, "(")
	group, after, closed := strings.Cut(rest, ")")
	if !found || !closed {
		return []string{one}
	}
	for word := range strings.SplitSeq(group, "|") {
		all = append(all, before+word+after)
	}
	return all
}

// The check finds each kind of mistake in the tables.
func TestTables_MistakesAreFound(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{"bpf": {"TestPrivilegedMaps_Fit", "TestPrivilegedSock_TCP", "TestPrivilegedSock_UDP"}, "test/kube/a": {"TestPrivilegedKube"}}
	good := []suite{{pkg: "bpf", kernels: both, tests: "Maps_.*|Sock_(TCP)"}}
	goodOmissions := []omission{{"bpf", both, "Sock_UDP", "slow"}, {"test/kube/...", both, ".*", "needs Kubernetes"}}
	for name, c := range map[string]struct {
		suites    []suite
		omissions []omission
		skips     []allowedSkip
		want      string // "" for none
	}{
		"none":                      {good, goodOmissions, []allowedSkip{{"bpf", oldest, "TestPrivilegedMaps_Fit/large", "no memory"}}, ""},
		"a test in no row":          {good, goodOmissions[1:], nil, "TestPrivilegedSock_UDP stands in 0 rows"},
		"a package in no row":       {good, goodOmissions[:1], nil, "TestPrivilegedKube stands in 0 rows"},
		"a test in two rows":        {good, append([]omission{{"bpf", oldest, "Maps_.*", "twice"}}, goodOmissions...), nil, "TestPrivilegedMaps_Fit stands in 2 rows for kernel 6.1"},
		"a kernel without the test": {[]suite{{pkg: "bpf", kernels: oldest, tests: "Maps_.*|Sock_TCP"}}, goodOmissions, nil, "stands in 0 rows for kernel 6.12"},
		"a part matches nothing":    {append([]suite{{pkg: "bpf", kernels: both, tests: "Maps_.*|Sock_(TCP|SCTP)"}}, good[1:]...), goodOmissions, nil, "no test is called ^TestPrivileged(Sock_SCTP)$"},
		"a row matches nothing":     {good, append([]omission{{"bpf", oldest, "Gone_.*", "slow"}}, goodOmissions...), nil, "no test is called"},
		"no reason":                 {good, []omission{{"bpf", both, "Sock_UDP", ""}, goodOmissions[1]}, nil, "no reason"},
		"an unknown kernel":         {good, append([]omission{{"bpf", "5.10", "Maps_.*", "old"}}, goodOmissions...), nil, "kernel 5.10 is not known"},
		"a skip of no test":         {good, goodOmissions, []allowedSkip{{"bpf", oldest, "TestPrivilegedGone", "slow"}}, "allowed skip bpf TestPrivilegedGone"},
		"a skip without a reason":   {good, goodOmissions, []allowedSkip{{"bpf", oldest, "TestPrivilegedMaps_Fit", ""}}, "allowed skip bpf TestPrivilegedMaps_Fit"},
	} {
		got := strings.Join(faultsOf(tests, c.suites, c.omissions, c.skips), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
