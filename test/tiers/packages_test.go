package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func thisTree(t *testing.T) *tree {
	t.Helper()
	tree, err := readTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestTree_ListsNameExistingTests(t *testing.T) {
	t.Parallel()
	tree := thisTree(t)
	for dir, s := range special {
		if tree.tests[dir] == "" {
			t.Errorf("special names %s, which has no tests", dir)
		}
		if _, ok := find(s.tier); !ok || s.reason == "" {
			t.Errorf("special: %s is in tier %q for %q: want a tier that exists, and a reason", dir, s.tier, s.reason)
		}
	}
	for _, dir := range raced {
		if tree.tests[dir] != "hermetic" && tree.tests[dir] != "machine" {
			t.Errorf("raced names %s, which is in tier %q", dir, tree.tests[dir])
		}
	}
	for list, tests := range map[string]map[string]string{"permittedSkips": permittedSkips, "expensive": expensive} {
		for name, reason := range tests {
			if reason == "" || !testExists(t, name) {
				t.Errorf("%s: %q for %q: want a test that exists, and a reason", list, name, reason)
			}
		}
	}
}

// testExists reports whether the tree has a test, such as "bpf TestX", or a subtest, such as "bpf TestX/a_case".
func testExists(t *testing.T, name string) bool {
	t.Helper()
	dir, test, _ := strings.Cut(name, " ")
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	top, sub, _ := strings.Cut(test, "/")
	has := func(pattern string) bool {
		return slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && regexp.MustCompile(pattern).Match(text)
		})
	}
	if sub == "*" { // all
		sub = ""
	}
	return has(`(?m)^func `+top+`\(`) && has(`"`+strings.ReplaceAll(regexp.QuoteMeta(sub), "_", "[_ ]"))
}

// The test cache stores results of hermetic packages and does not track files that other programs read.
func TestTree_HermeticTestsStartNoPrograms(t *testing.T) {
	t.Parallel()
	own := map[string]string{
		"pkg/deletequeue": "starts itself, to hold a lock and to run with few descriptors",
		"test/tiers":      "starts sh, echo and git, which read nothing of the tree",
	}
	for dir, tier := range thisTree(t).tests {
		if tier != "hermetic" || own[dir] != "" {
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(syntax.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote("os/exec") }) {
				t.Errorf("%s imports os/exec: name the package in special, with the tier machine", file)
			}
		}
	}
}

// A test with a cacheable result must read the machine's identity, or the result would remain valid with another kernel.
func TestTree_CachedTestsReadMachineIdentity(t *testing.T) {
	t.Parallel()
	cached, always := visible(thisTree(t).of("machine"))
	if len(always) != len(unseen) {
		t.Errorf("%q are never cached, unseen names %d packages", always, len(unseen))
	}
	for _, dir := range cached {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(name string) bool {
			text, err := os.ReadFile(name)
			return err == nil && regexp.MustCompile(`testnet\.(UsesMachine|RequirePrivileges|New|NewPair)\(`).Match(text)
		}) {
			t.Errorf("no test of %s calls testnet.UsesMachine or testnet.RequirePrivileges", dir)
		}
	}
}

func TestSplit_IncludesSubpackages(t *testing.T) {
	t.Parallel()
	race, rest := thisTree(t).split([]string{"./cells/kubernetes/k8stables/reflectors", "./cells/service/servicehealth", "./cells/datapath/mtu"})
	if len(race) != 2 || !slices.Equal(rest, []string{"./cells/datapath/mtu"}) {
		t.Errorf("under the race detector %q, without %q", race, rest)
	}
}

func TestFileTimes_DependOnContent(t *testing.T) {
	t.Parallel()
	stat := func(dir, name string) int64 {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime().UnixNano()
	}
	clones := []string{t.TempDir(), t.TempDir()}
	for _, dir := range clones {
		write(t, dir, "sub/a", "one")
		write(t, dir, "sub/b", "two")
		git(t, dir, "init", "-q")
		git(t, dir, "add", ".")
		git(t, dir, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "c")
		if err := setFileTimes(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{".", "sub", "sub/a", "sub/b"} {
		if stat(clones[0], name) != stat(clones[1], name) {
			t.Errorf("%s has another time in another clone", name)
		}
	}
	if stat(clones[0], "sub/a") == stat(clones[0], "sub/b") {
		t.Error("files of different content have the same time")
	}
	write(t, clones[0], "sub/a", "three")
	if err := setFileTimes(clones[0]); err == nil {
		t.Error("a clone with changes was accepted")
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := gitIn(dir, args...).CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}
