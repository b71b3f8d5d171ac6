package conventions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mayBeCalledLocked lists calls to other cells during which a lock may be held, each with the reason.
var mayBeCalledLocked = map[string]string{
	"the function in s.mine":  "compares two strings: whether an object belongs to this node",
	"the function in c.alive": "leaves a mark in an atomic value: that a pass goes on",
	"the function in s.alive": "the same",
}

// TestNoLockIsHeldAcrossACallOutOfTheCell prevents deadlocks of two cells that each hold their lock while they call the other. A call leaves the cell if it
// calls a method of an interface of this module that another package declares, calls a function in a variable, or sends on a channel that may be full. Table
// transactions are acquired last, in the order that package statedb defines.
func TestNoLockIsHeldAcrossACallOutOfTheCell(t *testing.T) {
	t.Parallel()
	used, regions := map[string]bool{}, 0
	for _, p := range typed(t, "./cells/...") {
		c := &lockCheck{p: p, memo: map[*types.Func][]string{}}
		for _, f := range p.files {
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
					c.function(fn)
				}
			}
		}
		regions += c.regions
		for _, found := range c.found {
			if _, ok := mayBeCalledLocked[found.call]; ok {
				used[found.call] = true
				continue
			}
			t.Errorf("%s: holds a lock across %s: call it before or behind, or give the reason in mayBeCalledLocked", found.at, found.call)
		}
	}
	for call := range mayBeCalledLocked {
		if !used[call] {
			t.Errorf("mayBeCalledLocked permits %s, which no cell calls with a lock: remove the row", call)
		}
	}
	if regions < 15 {
		t.Errorf("only %d places take a lock: the search is broken", regions)
	}
}

// TestLockCheck_Finds runs the check on a cell with all forbidden and permitted constructs.
func TestLockCheck_Finds(t *testing.T) {
	t.Parallel()
	const source = `package cell
import "sync"
type other interface{ Call() }
type s struct { mu sync.Mutex; rw sync.RWMutex; hook func(); ch chan int }
func (s *s) function() { s.mu.Lock(); defer s.mu.Unlock(); s.hook() }
func (s *s) between() { s.rw.RLock(); s.hook(); s.rw.RUnlock() }
func (s *s) send() { s.mu.Lock(); defer s.mu.Unlock(); if true { s.ch <- 1 } }
func (s *s) below() { s.mu.Lock(); defer s.mu.Unlock(); s.helper() }
func (s *s) helper() { s.hook() }
func (s *s) behind() { s.mu.Lock(); s.mu.Unlock(); s.hook() }
func (s *s) own(o other) { s.mu.Lock(); defer s.mu.Unlock(); o.Call() }
func (s *s) trySend() { s.mu.Lock(); defer s.mu.Unlock(); select { case s.ch <- 1: default: } }
func (s *s) local() { f := func() {}; s.mu.Lock(); defer s.mu.Unlock(); f() }
func (s *s) later() { s.mu.Lock(); defer s.mu.Unlock(); go s.hook() }
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "cell.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := newInfo()
	_, imports := listed(t, fset, "sync")
	pkg, err := (&types.Config{Importer: imports}).Check(module+"cells/domain/cell", fset, []*ast.File{f}, info)
	if err != nil {
		t.Fatal(err)
	}
	c := &lockCheck{p: typedPackage{pkg, fset, []*ast.File{f}, info}, memo: map[*types.Func][]string{}}
	found := map[string]int{}
	for _, decl := range f.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok {
			before := len(c.found)
			c.function(fn)
			found[fn.Name.Name] = len(c.found) - before
		}
	}
	for name, want := range map[string]int{"function": 1, "between": 1, "send": 1, "below": 1, "helper": 0, "behind": 0, "own": 0, "trySend": 0,
		"local": 0, "later": 0} {
		if found[name] != want {
			t.Errorf("%s: %d findings, want %d", name, found[name], want)
		}
	}
}

// lockCheck checks one package.
type lockCheck struct {
	p       typedPackage
	memo    map[*types.Func][]string // outside calls of a function of the package, including indirect ones
	found   []finding
	regions int
}

type finding struct{ at, call string }

// function checks the statements of each block from a Lock to its Unlock, or to the end of the block if the Unlock is deferred.
func (c *lockCheck) function(fn *ast.FuncDecl) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		block, ok := n.(*ast.BlockStmt)
		if !ok {
			return true
		}
		held := ""
		for _, stmt := range block.List {
			lock, method := c.mutex(stmt)
			switch {
			case method == "Lock" || method == "RLock":
				held = lock
				c.regions++
			case lock == held && strings.HasSuffix(method, "nlock"):
				held = ""
			case held != "":
				for _, call := range c.outside(stmt) {
					c.found = append(c.found, finding{c.p.fset.Position(stmt.Pos()).String(), call})
				}
			}
		}
		return true
	})
}

// mutex returns the lock and the method if a statement calls a method of a mutex.
func (c *lockCheck) mutex(stmt ast.Stmt) (lock, method string) {
	expr, ok := stmt.(*ast.ExprStmt)
	if !ok {
		return "", ""
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok {
		return "", ""
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	fn, ok := c.p.info.Uses[selector.Sel].(*types.Func)
	if !ok || fn.Pkg() == nil || fn.Pkg().Path() != "sync" || !strings.HasSuffix(strings.ToLower(fn.Name()), "lock") {
		return "", ""
	}
	return types.ExprString(selector.X), fn.Name()
}

// outside lists the calls in a piece of code that leave the cell.
func (c *lockCheck) outside(code ast.Node) (calls []string) {
	ast.Inspect(code, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			return false // another goroutine blocks
		case *ast.SelectStmt:
			if hasDefault(n) {
				for _, clause := range n.Body.List {
					for _, stmt := range clause.(*ast.CommClause).Body {
						calls = append(calls, c.outside(stmt)...)
					}
				}
				return false
			}
		case *ast.SendStmt:
			calls = append(calls, "a send on "+types.ExprString(n.Chan))
		case *ast.CallExpr:
			calls = append(calls, c.call(n)...)
		}
		return true
	})
	return calls
}

func hasDefault(s *ast.SelectStmt) bool {
	for _, clause := range s.Body.List {
		if clause.(*ast.CommClause).Comm == nil {
			return true
		}
	}
	return false
}

// call returns the callee if it is outside the cell, and otherwise the outside calls of the called function.
func (c *lockCheck) call(call *ast.CallExpr) []string {
	fun := ast.Unparen(call.Fun)
	var name *ast.Ident
	switch f := fun.(type) {
	case *ast.Ident:
		name = f
	case *ast.SelectorExpr:
		name = f.Sel
	default:
		return nil
	}
	switch callee := c.p.info.Uses[name].(type) {
	case *types.Var:
		signature, isFunc := callee.Type().Underlying().(*types.Signature)
		if isFunc && (callee.IsField() || callee.Parent() == c.p.pkg.Scope()) && !ofTransaction(signature) {
			return []string{"the function in " + types.ExprString(fun)}
		}
	case *types.Func:
		receiver := callee.Signature().Recv()
		if receiver != nil && types.IsInterface(receiver.Type()) {
			if pkg := callee.Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), module) && !sameCell(strings.TrimPrefix(c.p.pkg.Path(), module), strings.TrimPrefix(pkg.Path(), module)) {
				return []string{strings.Replace(callee.FullName(), module, "", 1)}
			}
			return nil
		}
		if callee.Pkg() == c.p.pkg {
			return c.through(callee)
		}
	}
	return nil
}

// ofTransaction reports whether a function takes only a write transaction. A variable with such a function marks a table of the cell as initialized.
func ofTransaction(s *types.Signature) bool {
	return s.Params().Len() == 1 && s.Params().At(0).Type().String() == "github.com/cilium/statedb.WriteTxn"
}

// through lists the outside calls of a function of the package.
func (c *lockCheck) through(fn *types.Func) []string {
	fn = fn.Origin()
	if calls, known := c.memo[fn]; known {
		return calls
	}
	c.memo[fn] = nil // ends recursion
	for _, f := range c.p.files {
		for _, decl := range f.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Body != nil && c.p.info.Defs[d.Name] == types.Object(fn) {
				c.memo[fn] = c.outside(d.Body)
			}
		}
	}
	return c.memo[fn]
}

// typedPackage is a package with the types of its expressions.
type typedPackage struct {
	pkg   *types.Package
	fset  *token.FileSet
	files []*ast.File
	info  *types.Info
}

func newInfo() *types.Info {
	return &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
}

// typed type-checks packages of this module, with the compiler's export data for their imports.
func typed(t *testing.T, pattern string) (out []typedPackage) {
	t.Helper()
	fset := token.NewFileSet()
	packages, imports := listed(t, fset, pattern)
	for _, p := range packages {
		checked := typedPackage{fset: fset, info: newInfo()}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			checked.files = append(checked.files, f)
		}
		var err error
		if checked.pkg, err = (&types.Config{Importer: imports}).Check(p.ImportPath, fset, checked.files, checked.info); err != nil {
			t.Fatal(err)
		}
		out = append(out, checked)
	}
	return out
}

// listedPackage is the output of `go list` for a package.
type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// listed returns the packages of a pattern and an importer for their imports. It compiles with the flags of the released programs, so that the compiled
// packages are in the build cache.
func listed(t *testing.T, fset *token.FileSet, pattern string) (packages []listedPackage, imports types.Importer) {
	t.Helper()
	list := exec.Command("go", "list", "-trimpath", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export,DepOnly", pattern)
	list.Dir = root(t)
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	list.Stderr = &stderr
	text, err := list.Output()
	if err != nil {
		t.Fatalf("list %s: %v\n%s", pattern, err, &stderr)
	}
	exports := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			packages = append(packages, p)
		}
	}
	return packages, importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("nothing is exported of %s", path)
		}
		return os.Open(exports[path])
	})
}
