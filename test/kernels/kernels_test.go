package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
)

// What `go test -json` writes when one test passes, one fails, one is skipped and one tells of itself.
const told = `{"Action":"start","Package":"bpf"}
{"Action":"run","Package":"bpf","Test":"TestA"}
{"Action":"output","Package":"bpf","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"bpf","Test":"TestA","Output":"    a_test.go:1: quiet\n"}
{"Action":"attr","Package":"bpf","Test":"TestA","Key":"verifier:a","Value":"17"}
{"Action":"pass","Package":"bpf","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"bpf","Test":"TestB","Output":"    b_test.go:1: broken\n"}
{"Action":"fail","Package":"bpf","Test":"TestB","Elapsed":0.1}
{"Action":"output","Package":"bpf","Test":"TestC","Output":"    c_test.go:1: needs 6.6\n"}
{"Action":"skip","Package":"bpf","Test":"TestC","Elapsed":0}
{"Action":"fail","Package":"bpf","Elapsed":1.5}
{"Action":"package failed","Package":"bpf","Elapsed":1.5}
`

func TestReport_SaysWhatFailedAndWhatDidNotRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := newReport("6.1", []suite{{Package: "bpf"}, {Package: "cni"}, {Package: "pkg/tc"}}, &out)
	more := `{"Action":"output","Package":"cni","Test":"TestD","Output":"    d_test.go:1: half-way\n"}`
	if err := r.read(strings.NewReader(told + more + "\n")); err != nil {
		t.Fatal(err)
	}
	r.summary()
	for _, want := range []string{"6.1   FAIL  bpf", "3 tests", "1.5 s\n    b_test.go:1: broken\n", "verifier:a: 17", "skip  bpf TestC\n    c_test.go:1: needs 6.6\n",
		"1 tests passed, 1 were skipped, 1 packages failed, 2 did not end"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "quiet") {
		t.Errorf("a test that passed is quoted:\n%s", &out)
	}
	err := r.err()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"tests failed in bpf", "before the tests of cni, pkg/tc ended", "half-way"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestReport_OKOnlyWhenTestsRan(t *testing.T) {
	t.Parallel()
	for said, ok := range map[string]bool{
		`{"Action":"pass","Package":"bpf","Test":"TestA"}` + "\n" + `{"Action":"package passed","Package":"bpf"}`: true,
		`{"Action":"package passed","Package":"bpf"}`:                                                             false, // -run matches nothing
		``: false,
	} {
		r := newReport("6.1", []suite{{Package: "bpf"}}, io.Discard)
		if err := r.read(strings.NewReader(said)); err != nil {
			t.Fatal(err)
		}
		if err := r.err(); (err == nil) != ok {
			t.Errorf("%q: %v", said, err)
		}
	}
}

func TestReport_NoiseIsAnError(t *testing.T) {
	t.Parallel()
	if err := newReport("6.1", nil, io.Discard).read(strings.NewReader("Kernel panic")); err == nil || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("got %v", err)
	}
}

func TestChooseSuites(t *testing.T) {
	t.Parallel()
	all, err := chooseSuites("../..", options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []suite{{"bpf", about["bpf"]}, {"cells/loader", "^TestPrivileged"}, {"cni", "^TestPrivileged"}, {agents, about[agents]}} {
		if !slices.Contains(all, want) {
			t.Errorf("%v is missing from %v", want, all)
		}
	}
	for pkg, reason := range elsewhere {
		if _, err := os.Stat(filepath.Join("../..", pkg)); err != nil || reason == "" || slices.ContainsFunc(all, func(s suite) bool { return s.Package == pkg }) {
			t.Errorf("%s is left out for the reason %q: %v", pkg, reason, err)
		}
	}
	some, err := chooseSuites("../..", options{packages: []string{"./bpf/"}, run: "Verifier"})
	if want := []suite{{"bpf", "Verifier"}}; err != nil || !slices.Equal(some, want) {
		t.Errorf("got %v, %v; want %v", some, err, want)
	}
	if _, err := chooseSuites("../..", options{packages: []string{"pkg/nothing"}}); err == nil || !strings.Contains(err.Error(), "pkg/nothing") {
		t.Errorf("a package without tests: %v", err)
	}
}

func TestNewest_UnknownSeries(t *testing.T) {
	t.Parallel()
	if _, err := newest(t.Context(), "5.4"); err == nil || !strings.Contains(err.Error(), "metaPackages") {
		t.Errorf("got %v", err)
	}
}

func TestWriteInitramfs_HoldsTheTreeAndTheModulesInOrder(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "initramfs")
	files := map[string]string{"init": "first", "bin/test2json": "second", "b.ko": "needs a", "a.ko.xz": "needed"}
	for name, text := range files {
		path := filepath.Join(root, "root", name)
		if strings.Contains(name, ".ko") {
			path = filepath.Join(root, name)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	k := &kernel{modules: []string{filepath.Join(root, "b.ko"), filepath.Join(root, "a.ko.xz")}}
	if err := writeInitramfs(out, filepath.Join(root, "root"), k); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got := map[string]string{}
	for archive := cpio.NewReader(file); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got[header.Name] = header.FileInfo().Mode().String() + " " + string(text)
	}
	want := map[string]string{"bin": "drwxr-xr-x ", "bin/test2json": "-rwxr-xr-x second", "init": "-rwxr-xr-x first", "modules": "drwxr-xr-x ",
		"modules/00-b.ko": "-rwxr-xr-x needs a", "modules/01-a.ko.xz": "-rwxr-xr-x needed"}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s is %q, want %q", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
}
