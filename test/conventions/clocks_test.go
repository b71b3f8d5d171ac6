package conventions

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// wallClock marks a line of a test that compares real time all the same; the reason stands behind it.
const wallClock = "// wall clock: "

// leastPatience is the shortest time after which a loop of a test may give up: a busy machine makes anything wait for seconds.
const leastPatience = 15

// A test that compares how long something took with a bound fails when the machine is busy, or passes when the product hangs.
// Inside testing/synctest time is exact; outside, a loop may only give up waiting, and that not early.
func TestTests_CompareNoWallTime(t *testing.T) {
	t.Parallel()
	bubbles := bubbleFuncs(files(t))
	for _, f := range files(t) {
		if !f.test() {
			continue
		}
		for _, at := range comparedTimes(f, bubbles[f.dir]) {
			t.Errorf("%s: compares the time that something took, outside testing/synctest", f.at(at))
		}
	}
}

func TestTests_CompareNoWallTime_Finds(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`func TestA(t *testing.T) { took := time.Since(x); if took > 5*time.Second { t.Fatal() } }`:                                 1,
		`func TestB(t *testing.T) { if d := time.Since(x); err != nil || d > second { t.Fatal() } }`:                                1,
		`func TestC(t *testing.T) { if time.Since(x) > time.Minute { t.Fatal() } }`:                                                 1,
		`func TestD(t *testing.T) { synctest.Test(t, func(t *testing.T) { if time.Since(x) != time.Minute { t.Fatal() } }) }`:       0,
		`func TestE(t *testing.T) { for { if time.Since(x) > 30*time.Second { t.Fatal() } } }`:                                      0,
		`func TestF(t *testing.T) { for { if time.Since(x) > 3*time.Second { t.Fatal() } } }`:                                       1,
		`func TestG(t *testing.T) { for time.Since(x) < time.Minute { } }`:                                                          0,
		`func TestH(t *testing.T) { took := time.Since(x); t.Log(took) }`:                                                           0,
		"func TestI(t *testing.T) { took := time.Since(x)\n if took > second { " + wallClock + "the kernel's timer\n t.Fatal() } }": 0,
		`func TestJ(t *testing.T) { begin := time.Now(); took := end.Sub(begin); if took < second { t.Fatal() } }`:                  1,
		`func TestK(t *testing.T) { if m.now.Sub(begin) < second { t.Fatal() } }`:                                                   0,
		`func TestL(t *testing.T) { virtual(t, func() { if time.Since(x) != second { t.Fatal() } }) }`:                              0,
	} {
		f := parse(t, "package a_test\n"+source)
		if got := comparedTimes(f, []string{"virtual"}); len(got) != want {
			t.Errorf("%s: %d findings, want %d", source, len(got), want)
		}
	}
}

// bubbleFuncs lists by folder the functions that run others in a bubble of testing/synctest.
func bubbleFuncs(all []file) map[string][]string {
	names := map[string][]string{}
	for _, f := range all {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.test() && fn.Body != nil && usesBubble(fn.Body, nil) {
				names[f.dir] = append(names[f.dir], fn.Name.Name)
			}
		}
	}
	return names
}

// comparedTimes finds comparisons of elapsed time in functions that use no bubble of testing/synctest, nor one of the functions
// that do.
func comparedTimes(f file, bubbles []string) (found []token.Pos) {
	for _, decl := range f.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || !readsClock(fn.Body) || usesBubble(fn.Body, bubbles) {
			continue
		}
		elapsed := elapsedNames(fn.Body)
		var loops []ast.Node // that hold the node
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				loops = append(loops, n)
			case *ast.BinaryExpr:
				loops = slices.DeleteFunc(loops, func(l ast.Node) bool { return n.Pos() > l.End() })
				if !comparesTime(n, elapsed) || f.marked(n.Pos()) {
					return true
				}
				if len(loops) == 0 || !patient(n) {
					found = append(found, n.Pos())
				}
			}
			return true
		})
	}
	return found
}

// marked reports whether the line of a position ends with the mark and a reason.
func (f file) marked(pos token.Pos) bool {
	line := strings.Split(string(f.source), "\n")[f.fset.Position(pos).Line-1]
	_, reason, found := strings.Cut(line, wallClock)
	return found && reason != ""
}

func usesBubble(body *ast.BlockStmt, bubbles []string) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			found = found || isName(n.X, "synctest")
		case *ast.CallExpr:
			name, ok := n.Fun.(*ast.Ident)
			found = found || ok && slices.Contains(bubbles, name.Name)
		}
		return !found
	})
	return found
}

// readsClock reports whether a function asks for the real time.
func readsClock(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && isName(s.X, "time") && (s.Sel.Name == "Now" || s.Sel.Name == "Since")
		return !found
	})
	return found
}

// elapsedNames are the variables that hold a time that something took.
func elapsedNames(body *ast.BlockStmt) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != len(assign.Rhs) {
			return true
		}
		for i, value := range assign.Rhs {
			if name, ok := assign.Lhs[i].(*ast.Ident); ok && isElapsed(value) {
				names[name.Name] = true
			}
		}
		return true
	})
	return names
}

// isElapsed reports whether an expression is time.Since(x) or x.Sub(y) of one argument, or a simple function of it.
func isElapsed(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CallExpr:
		s, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		return s.Sel.Name == "Since" && isName(s.X, "time") || s.Sel.Name == "Sub" && len(e.Args) == 1 || isElapsed(s.X)
	case *ast.BinaryExpr:
		return isElapsed(e.X) || isElapsed(e.Y)
	}
	return false
}

func comparesTime(n *ast.BinaryExpr, elapsed map[string]bool) bool {
	if !slices.Contains([]token.Token{token.LSS, token.GTR, token.LEQ, token.GEQ, token.EQL, token.NEQ}, n.Op) {
		return false
	}
	side := func(e ast.Expr) bool {
		name, ok := e.(*ast.Ident)
		return ok && elapsed[name.Name] || isElapsed(e)
	}
	return side(n.X) || side(n.Y)
}

// patient reports whether a comparison is with a constant of at least [leastPatience] seconds, or with a name, which other
// lines bound.
func patient(n *ast.BinaryExpr) bool {
	for _, e := range []ast.Expr{n.X, n.Y} {
		switch e := e.(type) {
		case *ast.Ident:
			return !isElapsed(e)
		case *ast.SelectorExpr:
			return e.Sel.Name == "Minute" || e.Sel.Name == "Hour"
		case *ast.BinaryExpr:
			count, ok := e.X.(*ast.BasicLit)
			unit, ok2 := e.Y.(*ast.SelectorExpr)
			if ok && ok2 {
				n, err := strconv.Atoi(count.Value)
				return err == nil && (unit.Sel.Name == "Minute" || unit.Sel.Name == "Second" && n >= leastPatience)
			}
		}
	}
	return false
}

func isName(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name
}

// A sequence that cannot be repeated cannot be debugged: random tests take their numbers from pkg/testseed.
func TestTests_TakeNoSeedFromTheClock(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if !f.test() {
			continue
		}
		for _, at := range unseeded(f) {
			t.Errorf("%s: random numbers that cannot be repeated: use pkg/testseed", f.at(at))
		}
	}
}

func TestTests_TakeNoSeedFromTheClock_Finds(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`import "math/rand/v2"; func TestA() { seed := uint64(time.Now().UnixNano()); _ = seed }`: 1,
		`import "math/rand/v2"; func TestB() { _ = rand.IntN(7) }`:                                1,
		`import "math/rand/v2"; func TestC() { _ = rand.New(rand.NewPCG(1, 2)).IntN(7) }`:         0,
		`func TestD() { name := time.Now().UnixNano(); _ = name }`:                                0,
		`import "crypto/rand"; func TestE() { _, _ = rand.Read(nil) }`:                            0,
	} {
		if got := unseeded(parse(t, "package a_test\n"+source)); len(got) != want {
			t.Errorf("%s: %d findings, want %d", source, len(got), want)
		}
	}
}

// sources are the functions of math/rand that make a source or take one.
var sources = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "NewSource", "Rand", "Source", "PCG", "Zipf"}

// unseeded finds seeds from the clock, and calls of the generator that nobody can seed.
func unseeded(f file) (found []token.Pos) {
	random := false
	for _, spec := range f.syntax.Imports {
		random = random || strings.HasPrefix(spec.Path.Value, `"math/rand`)
	}
	if !random {
		return nil
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if ok && (isName(s.X, "rand") && !slices.Contains(sources, s.Sel.Name) || strings.HasPrefix(s.Sel.Name, "UnixNano")) {
			found = append(found, s.Pos())
		}
		return true
	})
	return found
}

// parse makes a file of a test's source.
func parse(t *testing.T, source string) file {
	t.Helper()
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, "a_test.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file{path: "a_test.go", dir: ".", source: []byte(source), syntax: syntax, fset: fset}
}
