package conventions

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// wallClock marks an exempt comparison of real time in a test; the reason follows the mark.
const wallClock = "// wall clock: "

// minTimeout is the minimum timeout in seconds of a loop in a test: on a busy machine any operation can take seconds.
const minTimeout = 15

// A test that compares an elapsed time with a bound fails on a busy machine, or passes although the product hangs. Inside testing/synctest, time is exact;
// outside, a loop may only have a timeout, and not a short one.
func TestTests_CompareNoWallTime(t *testing.T) {
	t.Parallel()
	bubbles, limits := bubbleFuncs(files(t)), durations(files(t))
	for _, f := range files(t) {
		if !f.test() {
			continue
		}
		for _, at := range comparedTimes(f, bubbles[f.dir], limits[f.dir]) {
			if examined[f.path+" "+f.funcAt(at)] != "" {
				continue
			}
			t.Errorf("%s: compares the time that something took, outside testing/synctest", f.at(at))
		}
		for _, at := range shortDeadlines(f, bubbles[f.dir], limits[f.dir]) {
			if examined[f.path+" "+f.funcAt(at)] != "" {
				continue
			}
			t.Errorf("%s: waits for less than %d s, or not for a constant time, outside testing/synctest", f.at(at), minTimeout)
		}
	}
}

// examined lists functions by file whose times the rule cannot check, each with the reason. Other exemptions mark the line.
var examined = map[string]string{
	"cells/endpoint/ipamallocator/model_test.go next":                                                           "virtual: the model runs in a bubble",
	"cells/endpoint/ipamallocator/model_test.go restart":                                                        "virtual: the model runs in a bubble",
	"cells/datapath/loader/privileged_test.go send":                                                             "a minute for what must come, 200 ms for what must not",
	"test/node/conntrack_capacity_test.go listen":                                                               "each lost answer is asked for again on another connection",
	"test/node/conntrack_test.go exchangeWithin":                                                                "answerTimeout for what must come, noReplyTimeout for what must not",
	"test/node/identity_test.go identityOfCluster":                                                              "a number that comes too early; a busy machine makes it later",
	"test/node/mtu_change_test.go whole":                                                                        "answerTimeout, or a second if the callers repeat",
	"test/node/masquerade_address_test.go checkSource":                                                          "answerTimeout for what must come; a shorter one is repeated",
	"test/node/policy_advisories_test.go echoes":                                                                "its callers wait longer for what must come than for what must not",
	"test/node/policy_attempts_test.go await":                                                                   "attempts that are repeated, or must not be answered",
	"test/node/policy_node_addresses_test.go listenOnTheNode":                                                   "15 s for what must come, 200 ms for what must not",
	"test/node/service_world_test.go requestWithin":                                                             "answerTimeout for what must come; a shorter one is repeated",
	"test/node/stall_test.go probeWithin":                                                                       "the timeout of kubelet's probes, or 30 s",
	"cells/datapath/loader/generation_privileged_test.go TestPrivilegedGeneration_ReplacedWithoutLosingAPacket": "sends for a constant time; the test compares counts",
}

func TestTests_CompareNoWallTime_ExaminedExist(t *testing.T) {
	t.Parallel()
	all := map[string]bool{}
	for _, f := range files(t) {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				all[f.path+" "+fn.Name.Name] = true
			}
		}
	}
	for name := range examined {
		if !all[name] {
			t.Errorf("examined names %s, which is gone: remove the row", name)
		}
	}
}

func TestTests_CompareNoWallTime_Finds(t *testing.T) {
	t.Parallel()
	limits := map[string]float64{"second": 1, "patience": 15, "short": 5}
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
		`func TestM(t *testing.T) { for { if time.Since(x) > patience { t.Fatal() } } }`:                                            0,
		`func TestN(t *testing.T) { for { if time.Since(x) > short { t.Fatal() } } }`:                                               1,
		`func TestO(t *testing.T) { for { if time.Since(x) > grace { t.Fatal() } } }`:                                               1,
		`func TestP(t *testing.T) { const grace = time.Minute; for { if time.Since(x) > grace { t.Fatal() } } }`:                    0,
		`func TestQ(t *testing.T) { for { if time.Since(x) > 3*patience { t.Fatal() } } }`:                                          0,
		`func TestR(t *testing.T) { if time.Now().Before(since.Add(patience)) { return } }`:                                         1,
		`func TestS(t *testing.T) { for time.Now().Before(since.Add(patience)) { } }`:                                               0,
		`func TestT(t *testing.T) { for end := time.Now().Add(short); time.Now().Before(end); { } }`:                                1,
		`func TestU(t *testing.T) { for end := time.Now().Add(patience); time.Now().Before(end); { } }`:                             0,
		`func TestV(t *testing.T) { end := time.Now().Add(time.Minute); for { if time.Now().After(end) { t.Fatal() } } }`:           0,
		`func TestW(t *testing.T) { end := time.Now().Add(time.Minute); if time.Now().After(end) { t.Fatal() } }`:                   1,
		`func wait(t *testing.T, end time.Time) { for { if time.Now().After(end) { t.Fatal() } } }`:                                 1,
		`func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { if time.Now().After(end) { t.Fatal() } }) }`:              0,
		`func TestL(t *testing.T) { virtual(t, func() { if time.Since(x) != second { t.Fatal() } }) }`:                              0,
	} {
		f := parse(t, "package a_test\n"+source)
		if got := comparedTimes(f, []string{"virtual"}, limits); len(got) != want {
			t.Errorf("%s: %d findings, want %d", source, len(got), want)
		}
	}
	for source, want := range map[string]int{
		`func TestA(t *testing.T) { conn.SetDeadline(time.Now().Add(5*time.Second)) }`:                                                   1,
		`func TestB(t *testing.T) { conn.SetReadDeadline(time.Now().Add(20*time.Second)) }`:                                              0,
		`func TestC(t *testing.T) { conn.SetReadDeadline(time.Now().Add(short)) }`:                                                       1,
		`func TestD(t *testing.T) { conn.SetReadDeadline(time.Now().Add(patience)) }`:                                                    0,
		`func TestE(t *testing.T) { conn.SetReadDeadline(time.Now().Add(-time.Second)) }`:                                                0,
		`func wait(t *testing.T, limit time.Duration) { conn.SetReadDeadline(time.Now().Add(limit)) }`:                                   1,
		`func TestF(t *testing.T) { end := time.Now().Add(short); conn.SetDeadline(end) }`:                                               1,
		`func TestG(t *testing.T) { synctest.Test(t, func(t *testing.T) { conn.SetDeadline(time.Now().Add(short)) }) }`:                  0,
		`func TestH(t *testing.T) { conn.SetDeadline(time.Time{}) }`:                                                                     0,
		"func TestI(t *testing.T) { \n conn.SetReadDeadline(time.Now().Add(short)) " + wallClock + "watches for what must not come \n }": 0,
	} {
		f := parse(t, "package a_test\n"+source)
		if got := shortDeadlines(f, nil, limits); len(got) != want {
			t.Errorf("%s: %d findings, want %d", source, len(got), want)
		}
	}
}

// bubbleFuncs returns, by folder, the functions that run other functions in a bubble of testing/synctest.
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

// comparedTimes returns comparisons of elapsed time in functions that use neither a bubble of testing/synctest nor a function in bubbles.
func comparedTimes(f file, bubbles []string, limits map[string]float64) (found []token.Pos) {
	for _, decl := range f.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || !readsClock(fn.Body) || usesBubble(fn.Body, bubbles) {
			continue
		}
		elapsed, deadlines, local := elapsedNames(fn.Body), deadlineNames(fn.Body), withLocal(limits, fn.Body)
		var loops []ast.Node // loops that contain the node
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			patient := false
			switch n := n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				loops = append(loops, n)
				return true
			case *ast.BinaryExpr:
				if !comparesTime(n, elapsed) {
					return true
				}
				patient = atLeast(n.X, minTimeout, local) || atLeast(n.Y, minTimeout, local)
			case *ast.CallExpr:
				end, compares := comparesNow(n)
				if !compares {
					return true
				}
				patient = endsLate(end, deadlines, local)
			default:
				return true
			}
			loops = slices.DeleteFunc(loops, func(l ast.Node) bool { return n.Pos() > l.End() })
			if (len(loops) == 0 || !patient) && !f.marked(n.Pos()) {
				found = append(found, n.Pos())
			}
			return true
		})
	}
	return found
}

// shortDeadlines returns connection deadlines that are shorter than [minTimeout] or not a constant of the package.
func shortDeadlines(f file, bubbles []string, limits map[string]float64) (found []token.Pos) {
	for _, decl := range f.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || !readsClock(fn.Body) || usesBubble(fn.Body, bubbles) {
			continue
		}
		deadlines, local := deadlineNames(fn.Body), withLocal(limits, fn.Body)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"SetDeadline", "SetReadDeadline", "SetWriteDeadline"}, s.Sel.Name) {
				return true
			}
			_, never := call.Args[0].(*ast.CompositeLit) // time.Time{}
			if !never && !isPast(call.Args[0]) && !endsLate(call.Args[0], deadlines, local) && !f.marked(n.Pos()) {
				found = append(found, n.Pos())
			}
			return true
		})
	}
	return found
}

// funcAt returns the name of the function around a position.
func (f file) funcAt(pos token.Pos) string {
	for _, decl := range f.syntax.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Pos() <= pos && pos <= fn.End() {
			return fn.Name.Name
		}
	}
	return ""
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

// readsClock reports whether a function reads the real time.
func readsClock(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && isName(s.X, "time") && (s.Sel.Name == "Now" || s.Sel.Name == "Since")
		return !found
	})
	return found
}

// elapsedNames returns the variables that hold an elapsed time.
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

func isName(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name
}

// A random sequence that cannot be repeated cannot be debugged: tests with random numbers use pkg/testseed.
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
		`import "math/rand/v2"; func TestA() { seed := uint64(time.Now().UnixNano()); _ = seed }`:         1,
		`import "math/rand/v2"; func TestB() { _ = rand.IntN(7) }`:                                        1,
		`import "math/rand/v2"; func TestC() { _ = rand.New(rand.NewPCG(1, 2)).IntN(7) }`:                 0,
		`func TestD() { name := time.Now().UnixNano(); _ = name }`:                                        0,
		`import "crypto/rand"; func TestE() { _, _ = rand.Read(nil) }`:                                    0,
		`import "testing/quick"; func TestF() { _ = quick.Check(f, nil) }`:                                1,
		`import "testing/quick"; func TestG() { _ = quick.CheckEqual(f, g, &quick.Config{MaxCount: 7}) }`: 1,
		`import "testing/quick"; func TestH() { _ = quick.Check(f, &quick.Config{Rand: r}) }`:             0,
	} {
		if got := unseeded(parse(t, "package a_test\n"+source)); len(got) != want {
			t.Errorf("%s: %d findings, want %d", source, len(got), want)
		}
	}
}

// sources lists the functions of math/rand that create or take a source.
var sources = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "NewSource", "Rand", "Source", "PCG", "Zipf"}

// unseeded returns seeds from the clock, and calls of the global generator, which has no seed.
func unseeded(f file) (found []token.Pos) {
	random, properties := false, false
	for _, spec := range f.syntax.Imports {
		random = random || strings.HasPrefix(spec.Path.Value, `"math/rand`)
		properties = properties || spec.Path.Value == `"testing/quick"`
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && properties && !seededCheck(call) {
			found = append(found, n.Pos())
		}
		s, ok := n.(*ast.SelectorExpr)
		if ok && random && (isName(s.X, "rand") && !slices.Contains(sources, s.Sel.Name) || strings.HasPrefix(s.Sel.Name, "UnixNano")) {
			found = append(found, s.Pos())
		}
		return true
	})
	return found
}

// seededCheck reports whether a call is not one of testing/quick, or sets a source of random numbers. Without a source, the clock is the seed.
func seededCheck(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !isName(s.X, "quick") || !strings.HasPrefix(s.Sel.Name, "Check") {
		return true
	}
	config, ok := call.Args[len(call.Args)-1].(*ast.UnaryExpr)
	if !ok {
		return false
	}
	fields, ok := config.X.(*ast.CompositeLit)
	return ok && slices.ContainsFunc(fields.Elts, func(e ast.Expr) bool {
		field, ok := e.(*ast.KeyValueExpr)
		return ok && isName(field.Key, "Rand")
	})
}

// parse parses the source of a test.
func parse(t *testing.T, source string) file {
	t.Helper()
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, "a_test.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file{path: "a_test.go", dir: ".", source: []byte(source), syntax: syntax, fset: fset}
}
