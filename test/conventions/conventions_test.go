// Package conventions checks rules of the source tree that a compiler does not check.
package conventions

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/waggle-net/waggle/"

// maxLines is the maximum number of lines in a file.
const maxLines = 500

// file is one Go file of the tree. Generated files are excluded.
type file struct {
	path   string // relative to the root, with slashes
	dir    string
	source []byte
	syntax *ast.File
	fset   *token.FileSet
}

func (f file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f file) at(pos token.Pos) string {
	return f.path + ":" + strconv.Itoa(f.fset.Position(pos).Line)
}

// root returns the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// files returns all Go files that are not generated.
func files(t *testing.T) []file {
	t.Helper()
	out, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 100 {
		t.Fatalf("only %d files found: the search is broken", len(out))
	}
	return out
}

// top is the root of the tree.
const top = "../.."

// walk calls visit for each regular file of the tree, with its path relative to the root. bin and hidden folders are excluded.
func walk(visit func(relative string) error) error {
	return fs.WalkDir(os.DirFS(top), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin"):
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		return visit(name)
	})
}

// parsed parses the tree once for all tests.
var parsed = sync.OnceValues(func() (out []file, err error) {
	err = walk(func(relative string) error {
		if !strings.HasSuffix(relative, ".go") {
			return nil
		}
		name := filepath.Join(top, relative)
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		syntax, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(syntax) {
			return nil
		}
		out = append(out, file{path: relative, dir: path.Dir(relative), source: source, syntax: syntax, fset: fset})
		return nil
	})
	return out, err
})

func TestPackagesHaveAComment(t *testing.T) {
	t.Parallel()
	documented := map[string]bool{}
	for _, f := range files(t) {
		if f.test() && strings.HasSuffix(f.syntax.Name.Name, "_test") {
			continue
		}
		documented[f.dir] = documented[f.dir] || f.syntax.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// layers lists the packages of this module that a folder may import. Tests may import more packages: a test kit is in the folder of the tested package.
var layers = map[string][]string{
	"pkg":   {"pkg/", "api/", "bpf"},
	"cells": {"pkg/", "api/", "bpf"},
	"cni":   {"pkg/", "api/"},
	"api":   {"api/"},
	"bpf":   {"pkg/", "bpf/"},
}

func TestImportsFollowLayers(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if f.test() {
			continue
		}
		allowed, limited := layers[strings.SplitN(f.dir, "/", 2)[0]]
		for _, spec := range f.syntax.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			local, ours := strings.CutPrefix(name, module)
			switch {
			case !ours || !limited:
			case strings.HasPrefix(f.dir, "cells/") && sameCell(f.dir, local):
			case !slices.ContainsFunc(allowed, func(p string) bool { return strings.HasPrefix(local+"/", p) || local == p }):
				t.Errorf("%s: imports %s", f.at(spec.Pos()), local)
			}
		}
	}
}

// sameCell reports whether a folder of a cell imports another folder of the same cell, which is permitted.
func sameCell(dir, imported string) bool {
	parts := strings.SplitN(dir, "/", 4) // cells/DOMAIN/CELL
	return len(parts) >= 3 && strings.HasPrefix(imported+"/", strings.Join(parts[:3], "/")+"/")
}

// forbiddenImports lists packages that must not be linked into a binary.
var forbiddenImports = map[string]string{
	"github.com/cilium/cilium":                "its code is not ours to use",
	"k8s.io/client-go/kubernetes":             "the typed clientset makes the agent twice as large",
	"k8s.io/client-go/informers":              "informers keep a second copy of all objects",
	"k8s.io/client-go/dynamic":                "use pkg/kubernetes/kubeapi",
	"sigs.k8s.io/controller-runtime":          "use pkg/kubernetes/kubeapi and a reflector that writes tables",
	"k8s.io/kubectl":                          "far too large",
	"k8s.io/client-go/plugin/pkg/client/auth": "an agent runs no programs for its credentials",
}

// The command line reads tables: a Kubernetes type in a table would make its binary a quarter larger.
func TestTablesHaveNoTypesOfKubernetes(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if f.test() || !strings.HasPrefix(f.dir, "pkg/tables/") {
			continue
		}
		for _, spec := range f.syntax.Imports {
			if name, _ := strconv.Unquote(spec.Path.Value); strings.HasPrefix(name, "k8s.io/") || name == module+"pkg/kubernetes/ciliumv2" {
				t.Errorf("%s: imports %s", f.at(spec.Pos()), name)
			}
		}
	}
}

// ofClient is the only cell that may connect to the API server. All other cells get a client.
const ofClient = "cells/kubernetes/k8sclient"

var findsTheServer = regexp.MustCompile(`^(InClusterConfig|KUBERNETES_SERVICE_(HOST|PORT)|/var/run/secrets/kubernetes\.io/serviceaccount.*)$`)

// informer matches constructors of informers, which keep a second copy of all objects; a reflector writes into a given store.
var informer = regexp.MustCompile(`^New.*Informer`)

// nested reports whether a folder belongs to another module, whose programs are not part of Waggle.
func nested(dir string) bool { return strings.HasPrefix(dir+"/", "test/kube/") }

// Package test/tiers knows the packages of two modules. No tier would run the tests of a third one.
func TestModulesHaveATier(t *testing.T) {
	t.Parallel()
	var found []string
	err := walk(func(relative string) error {
		if path.Base(relative) == "go.mod" {
			found = append(found, path.Dir(relative))
		}
		return nil
	})
	if want := []string{".", "test/kube"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("modules are in %q (%v), want %q: a new one needs a tier in test/tiers", found, err, want)
	}
}

func TestOneCellFindsTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if nested(f.dir) || f.dir == "test/conventions" {
			continue
		}
		for _, spec := range f.syntax.Imports {
			if name, _ := strconv.Unquote(spec.Path.Value); name == "k8s.io/client-go/tools/clientcmd" && f.dir != ofClient {
				t.Errorf("%s: imports %s: take *kubeapi.Client, only %s knows where the API server is", f.at(spec.Pos()), name, ofClient)
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			word := ""
			switch n := n.(type) {
			case *ast.BasicLit:
				word, _ = strconv.Unquote(n.Value)
			case *ast.SelectorExpr:
				word = n.Sel.Name
			}
			if f.dir != ofClient && !f.test() && findsTheServer.MatchString(word) {
				t.Errorf("%s: %s: take *kubeapi.Client, only %s knows where the API server is", f.at(n.Pos()), word, ofClient)
			}
			if x, ok := n.(*ast.SelectorExpr); ok && informer.MatchString(word) {
				if from, ok := x.X.(*ast.Ident); ok && from.Name == "cache" {
					t.Errorf("%s: cache.%s: use a reflector that writes tables", f.at(n.Pos()), word)
				}
			}
			return true
		})
	}
}

// execFree lists folders whose code runs on nodes and must not start programs. The exception is starter, which starts the plugin to test it as runtimes do.
var execFree = []string{"cmd/waggle-agent", "cmd/waggle-cni", "cells/", "cni", "pkg/", "daemon"}

const starter = "pkg/setup"

func TestForbiddenImports(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		for _, spec := range f.syntax.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			for prefix, why := range forbiddenImports {
				if !nested(f.dir) && strings.HasPrefix(name+"/", strings.TrimSuffix(prefix, "/")+"/") {
					t.Errorf("%s: imports %s: %s", f.at(spec.Pos()), name, why)
				}
			}
			onNodes := slices.ContainsFunc(execFree, func(p string) bool { return strings.HasPrefix(f.dir+"/", strings.TrimSuffix(p, "/")+"/") })
			if name == "os/exec" && onNodes && f.dir != starter && !f.test() {
				t.Errorf("%s: imports os/exec: nothing is executed at run time", f.at(spec.Pos()))
			}
		}
	}
}

func TestNoInit(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init(): work belongs into constructors and hooks", f.at(fn.Pos()))
			}
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if lines := bytes.Count(f.source, []byte("\n")); lines >= maxLines {
			t.Errorf("%s: %d lines, want less than %d", f.path, lines, maxLines)
		}
	}
}

// rawDump matches dump functions of the netlink library that return a partial list if the kernel interrupts the dump.
var rawDump = regexp.MustCompile(`^(LinkList|AddrList|RouteList|RouteListFiltered|RuleList|NeighList|QdiscList|FilterList|ClassList)$`)

func TestDumpsGoThroughTheWrapper(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if f.dir == "pkg/datapath/rtnl" || f.test() || strings.HasPrefix(f.dir, "test/") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || !rawDump.MatchString(call.Sel.Name) {
				return true
			}
			if x, ok := call.X.(*ast.Ident); ok && x.Name == "netlink" {
				t.Errorf("%s: netlink.%s: dump through pkg/datapath/rtnl, which retries what was interrupted", f.at(n.Pos()), call.Sel.Name)
			}
			return true
		})
	}
}

// TestChangesGoThroughTheFeed finds direct uses of a table's change iterators, which may deliver fewer changes than a snapshot contains. Packages for kernel
// notifications have methods with this name as well, without a transaction.
func TestChangesGoThroughTheFeed(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if f.dir == "pkg/changefeed" || f.test() {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if x, ok := call.Fun.(*ast.SelectorExpr); ok && x.Sel.Name == "Changes" {
				t.Errorf("%s: follow tables with pkg/changefeed, which hands over all that a snapshot has", f.at(n.Pos()))
			}
			return true
		})
	}
}

// unfinished is split so that it does not match this file.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX|HA` + `CK)\b|(?i)\bplace` + `holder\b|\bstub` + `bed\b|/wo` + `rk/|\.\./sha` + `red`)

// TestNoUnfinishedWork searches all tracked text files.
func TestNoUnfinishedWork(t *testing.T) {
	t.Parallel()
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = root(t)
	names, err := list.Output()
	if err != nil {
		t.Skipf("not a git checkout (%v): run in a clone", err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(names), "\x00"), "\x00") {
		if strings.HasSuffix(name, ".o") || strings.HasSuffix(name, ".sum") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			continue // deleted, but the deletion is not committed yet
		}
		for i, line := range bytes.Split(content, []byte("\n")) {
			if word := unfinished.Find(line); word != nil {
				t.Errorf("%s:%d: %q", name, i+1, word)
			}
		}
	}
}

// TestFolderNames rejects folder names without a specific meaning, because such folders collect unrelated code.
func TestFolderNames(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		for part := range strings.SplitSeq(f.dir, "/") {
			if slices.Contains([]string{"util", "utils", "common", "helpers", "misc", "types"}, part) {
				t.Errorf("%s: name the folder after what it does", f.dir)
			}
		}
	}
}

// TestDaemonOnlyLists requires that package daemon contains only lists of cells.
func TestDaemonOnlyLists(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if f.dir != "daemon" || f.test() {
			continue
		}
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.GenDecl); !ok || d.Tok != token.IMPORT && d.Tok != token.VAR {
				t.Errorf("%s: only lists of cells belong here", f.at(decl.Pos()))
			}
		}
	}
}
