package conventions

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestLoopsHaveAWatchdog requires that the watchdog observes every loop, because a hang of another loop is not detected; see package watchdog.
func TestLoopsHaveAWatchdog(t *testing.T) {
	t.Parallel()
	loops := 0
	for _, f := range files(t) {
		if f.test() || f.dir == "pkg/watchdog" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			at := f.at(call.Pos())
			switch calleeOf(call) {
			case "reconciler.Register":
				t.Errorf("%s: register with watchdog.Register, so that rows without an attempt are found", at)
			case "job.OneShot", "job.Observer", "job.Timer":
				t.Errorf("%s: use watchdog.Add or AddTimer, so that a job which hangs is found", at)
			case "watchdog.Add", "watchdog.AddRetried", "watchdog.AddVital", "watchdog.AddTimer":
				loops++
			}
			return true
		})
	}
	if loops < 40 {
		t.Errorf("only %d loops found: the search is broken", loops)
	}
}

func (f file) offset(pos token.Pos) int { return f.fset.Position(pos).Offset }

// calleeOf returns "package.Function" or "variable.Method" of a call, or "".
func calleeOf(call *ast.CallExpr) string {
	fun := call.Fun
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	selector, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := selector.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + selector.Sel.Name
}

// TestIdleLoopsBecomeBusy finds functions that call Idle but neither Busy, Snapshot nor loop.Run: the watchdog ignores them after their first wait. A comment after
// Idle gives the reason for an exception.
func TestIdleLoopsBecomeBusy(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if f.test() || f.dir == "pkg/watchdog" {
			continue
		}
		for _, decl := range f.syntax.Decls {
			idle, busy := token.NoPos, false
			ast.Inspect(decl, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch calleeOf(call) {
				case "watchdog.Idle", "watchdog.IdleFor":
					rest, _, _ := strings.Cut(string(f.source[f.offset(call.End()):]), "\n")
					if !strings.Contains(rest, "// ") {
						idle = call.Pos()
					}
				case "watchdog.Busy", "watchdog.Snapshot", "loop.Run":
					busy = true
				}
				return true
			})
			if idle.IsValid() && !busy {
				t.Errorf("%s: nothing in this function says watchdog.Busy again; if that is right, say why behind Idle", f.at(idle))
			}
		}
	}
}
