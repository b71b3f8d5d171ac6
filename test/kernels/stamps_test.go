package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/kernels/plan"
)

func someInputs() inputs {
	return inputs{Suite: plan.Suite{Package: "bpf", Args: []string{"-test.run=A"}}, Kernel: "6.1", Programs: map[string]string{"waggle-cni": "1"},
		Testdata: map[string]string{"a.txt": "1"}}
}

// Each input changes the hash. The test finds fields by reflection, so that it covers new ones.
func TestInputs_EachChangesTheHash(t *testing.T) {
	t.Parallel()
	base, err := someInputs().hash()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := someInputs().hash(); again != base {
		t.Error("equal inputs have different hashes")
	}
	seen := map[string]string{base: "nothing"}
	differs := func(what string, in inputs) {
		t.Helper()
		hash, err := in.hash()
		if err != nil {
			t.Fatal(err)
		}
		if other, found := seen[hash]; found {
			t.Errorf("a change of %s has the hash of a change of %s", what, other)
		}
		seen[hash] = what
	}
	change(t, reflect.TypeFor[inputs](), "", func(what string, set func(reflect.Value)) {
		in := someInputs()
		set(reflect.ValueOf(&in).Elem())
		differs(what, in)
	})
	in := someInputs()
	in.Testdata = map[string]string{"b.txt": "1"}
	differs("a file's name", in)
	in.Testdata = map[string]string{"a.txt": "2"}
	differs("a file's content", in)
	if len(seen) < 14 {
		t.Errorf("only %d inputs were changed: %v", len(seen), seen)
	}
}

// change calls f for each field of a struct and of nested structs, with a function that changes the field's value.
func change(t *testing.T, of reflect.Type, prefix string, f func(what string, set func(reflect.Value))) {
	t.Helper()
	for i := range of.NumField() {
		field := of.Field(i)
		var value reflect.Value
		switch field.Type.Kind() {
		case reflect.Struct:
			change(t, field.Type, field.Name+".", func(what string, set func(reflect.Value)) {
				f(prefix+what, func(v reflect.Value) { set(v.Field(i)) })
			})
			continue
		case reflect.String:
			value = reflect.ValueOf("changed")
		case reflect.Slice:
			value = reflect.ValueOf([]string{"changed"})
		case reflect.Map:
			value = reflect.ValueOf(map[string]string{"changed": "1"})
		default:
			t.Fatalf("%s%s: this test cannot change a %s", prefix, field.Name, field.Type)
		}
		f(prefix+field.Name, func(v reflect.Value) { v.Field(i).Set(value) })
	}
}

// list is output of `go list -deps -test -export -json` with a dependency, a test binary, and a package that contains only tests.
const list = `{"ImportPath":"unsafe"}
{"ImportPath":"a","BuildID":"x/DEP"}
{"ImportPath":"p"}
{"ImportPath":"p.test","Name":"main","BuildID":"y/main","Deps":["a","unsafe"]}`

func TestIdentities_ChangeOnlyWithLinkedCode(t *testing.T) {
	t.Parallel()
	of := func(list, version, flags string) string {
		t.Helper()
		ids, err := identitiesOf(strings.NewReader(list), version, flags)
		if err != nil || ids["p.test"] == "" {
			t.Fatalf("%v, %v", ids, err)
		}
		return ids["p.test"]
	}
	base := of(list, "go1", "-s")
	// The hash of the compiler's input contains the path of the clone; the hash of its output does not.
	if of(strings.ReplaceAll(list, "x/DEP", "z/DEP"), "go1", "-s") != base {
		t.Error("a dependency that compiles to the same is another program")
	}
	for what, id := range map[string]string{
		"dependency": of(strings.Replace(list, "DEP", "OTHER", 1), "go1", "-s"),
		"main":       of(strings.Replace(list, "y/main", "y/other", 1), "go1", "-s"),
		"toolchain":  of(list, "go2", "-s"),
		"flags":      of(list, "go1", "-w"),
	} {
		if id == base {
			t.Errorf("a change of the %s is not seen", what)
		}
	}
	if _, err := identitiesOf(strings.NewReader(`{"ImportPath":"p.test","Name":"main","BuildID":"y/main","Deps":["missing"]}`), "go1", ""); err == nil {
		t.Error("a dependency without a hash is no error")
	}
}

func TestChecksums_NestedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if sums, err := checksums(filepath.Join(dir, "nothing")); err != nil || len(sums) != 0 {
		t.Errorf("no folder: %v, %v", sums, err)
	}
	write := func(name, text string) map[string]string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		sums, err := checksums(dir)
		if err != nil {
			t.Fatal(err)
		}
		return sums
	}
	one := write("a.txt", "1")
	two := write("sub/b.txt", "1")
	three := write("sub/b.txt", "2")
	if len(one) != 1 || len(two) != 2 || two["a.txt"] != two["sub/b.txt"] || three["sub/b.txt"] == two["sub/b.txt"] {
		t.Errorf("got %v, %v, %v", one, two, three)
	}
}

// runOf returns a run of one suite whose only variable input is the test binary.
func runOf(t *testing.T, dir string, now time.Time, binary string, o options) *kernelRun {
	t.Helper()
	o.cache, o.out = dir, filepath.Join(dir, "out")
	s := suite{pkg: "pkg/datapath/tc", kernels: oldest, tests: ".*"}
	r := newKernelRun(&kernel{series: oldest, id: "package"}, []suite{s}, o)
	r.report.out, r.stamps.Now = io.Discard, func() time.Time { return now }
	ids := map[string]string{guestPackage: "g", runnerPackage: "r", s.binary(): binary}
	if err := r.decide(s, ids, "qemu 1", o.all); err != nil {
		t.Fatal(err)
	}
	return r
}

// finish ends the run's suite as the machine would, and writes stamps.
func finish(t *testing.T, r *kernelRun, action string) {
	t.Helper()
	output := `{"Action":"pass","Package":"pkg/datapath/tc","Test":"TestA"}` + "\n" + `{"Action":"` + action + `","Package":"pkg/datapath/tc"}`
	if err := r.report.read(strings.NewReader(output)); err != nil {
		t.Fatal(err)
	}
	if err := r.leaveStamps(); err != nil {
		t.Fatal(err)
	}
}

func TestStamps_SuiteRerunConditions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		before  string // previous result of the suite; "" for none
		again   string // result of a second run, with all; "" for none
		after   time.Duration
		binary  string
		options options
		runs    bool
	}{
		"never ran":             {"", "", 0, "b", options{}, true},
		"passed":                {plan.Passed, "", day, "b", options{}, false},
		"passed 13 days before": {plan.Passed, "", 13 * day, "b", options{}, false},
		"passed 15 days before": {plan.Passed, "", 15 * day, "b", options{}, true},
		"passed in the future":  {plan.Passed, "", -day, "b", options{}, true},
		"failed":                {plan.Failed, "", day, "b", options{}, true},
		"passed, then failed":   {plan.Passed, plan.Failed, day, "b", options{}, true},
		"another binary":        {plan.Passed, "", day, "c", options{}, true},
		"all are wanted":        {plan.Passed, "", day, "b", options{all: true}, true},
		"other tests":           {plan.Passed, "", day, "b", options{run: "X"}, true},
	} {
		dir := t.TempDir()
		if c.before != "" {
			finish(t, runOf(t, dir, now, "b", options{}), c.before)
		}
		if c.again != "" {
			finish(t, runOf(t, dir, now, "b", options{all: true}), c.again)
		}
		r := runOf(t, dir, now.Add(c.after), c.binary, c.options)
		if runs := len(r.left) == 1; runs != c.runs {
			t.Errorf("%s: runs %v, want %v", name, runs, c.runs)
		}
		if c.runs {
			continue
		}
		if got := r.report.totals(); got.unchanged != 1 || got.passed != 0 || r.report.err() != nil || r.packages() != nil {
			t.Errorf("%s: %+v, %v; programs %v", name, got, r.report.err(), r.packages())
		}
	}
}

// A random test that passed with one seed may fail with another.
func TestStamps_OtherSeed_AreInvalid(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for _, c := range []struct {
		seed string
		runs bool
	}{{"", true}, {"", false}, {"7", true}, {"7", false}, {"8", true}, {"", false}} {
		t.Setenv(testseed.Env, c.seed)
		r := runOf(t, dir, now, "b", options{})
		if runs := len(r.left) == 1; runs != c.runs {
			t.Errorf("with seed %q: runs %v, want %v", c.seed, runs, c.runs)
		}
		if got := slices.Contains(r.planned(r.chosen[0]).Env, testseed.Env+"="+c.seed); got != (c.seed != "") {
			t.Errorf("with seed %q: the machine is told of it %v", c.seed, got)
		}
		finish(t, r, plan.Passed)
	}
}

// A run of tests other than the table's leaves no stamp, and an abnormal end of a machine leaves none for its suites.
func TestStamps_OnlyCompletePassWritesStamp(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	finish(t, runOf(t, dir, now, "b", options{run: "X"}), plan.Passed)
	if r := runOf(t, dir, now, "b", options{}); len(r.left) != 1 {
		t.Error("a run of other tests left a stamp")
	}
	finish(t, runOf(t, dir, now, "b", options{}), plan.Passed)
	r := runOf(t, dir, now, "b", options{all: true})
	r.err = io.ErrUnexpectedEOF
	finish(t, r, plan.Passed)
	if r := runOf(t, dir, now, "b", options{}); len(r.left) != 1 {
		t.Error("a machine that broke left a stamp")
	}
}
