package conventions

import (
	"go/ast"
	"go/token"
	"maps"
	"strconv"
)

// comparesNow returns the argument of a call of time.Now().Before or time.Now().After.
func comparesNow(call *ast.CallExpr) (end ast.Expr, ok bool) {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Before" && s.Sel.Name != "After" || len(call.Args) != 1 {
		return nil, false
	}
	now, ok := s.X.(*ast.CallExpr)
	if !ok {
		return nil, false
	}
	f, ok := now.Fun.(*ast.SelectorExpr)
	return call.Args[0], ok && isName(f.X, "time") && f.Sel.Name == "Now"
}

// deadlineNames returns the variables that are a time plus a duration, each with the duration.
func deadlineNames(body *ast.BlockStmt) map[string]ast.Expr {
	names := map[string]ast.Expr{}
	ast.Inspect(body, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != len(assign.Rhs) {
			return true
		}
		for i, value := range assign.Rhs {
			if name, ok := assign.Lhs[i].(*ast.Ident); ok {
				if d, ok := added(value); ok {
					names[name.Name] = d
				}
			}
		}
		return true
	})
	return names
}

// added returns the duration in a call of Add.
func added(e ast.Expr) (ast.Expr, bool) {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil, false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	return call.Args[0], ok && s.Sel.Name == "Add"
}

// isPast reports whether a deadline is a negative duration away, which ends a blocked operation immediately.
func isPast(e ast.Expr) bool {
	d, ok := added(e)
	if !ok {
		return false
	}
	if product, ok := d.(*ast.BinaryExpr); ok {
		d = product.X
	}
	minus, ok := d.(*ast.UnaryExpr)
	return ok && minus.Op == token.SUB
}

// endsLate reports whether a deadline is at least [minTimeout] away.
func endsLate(end ast.Expr, deadlines map[string]ast.Expr, limits map[string]float64) bool {
	d, ok := added(end)
	if name, isIdent := end.(*ast.Ident); isIdent {
		d, ok = deadlines[name.Name]
	}
	return ok && atLeast(d, minTimeout, limits)
}

// durations returns the duration constants of each folder in seconds.
func durations(all []file) map[string]map[string]float64 {
	byDir := map[string]map[string]float64{}
	for range 2 { // a constant can depend on one in a later file
		for _, f := range all {
			if byDir[f.dir] == nil {
				byDir[f.dir] = map[string]float64{}
			}
			for _, decl := range f.syntax.Decls {
				addDurations(byDir[f.dir], decl)
			}
		}
	}
	return byDir
}

// withLocal returns the constants of a package and of a function.
func withLocal(limits map[string]float64, body *ast.BlockStmt) map[string]float64 {
	local := map[string]float64{}
	maps.Copy(local, limits)
	ast.Inspect(body, func(n ast.Node) bool {
		if decl, ok := n.(*ast.DeclStmt); ok {
			addDurations(local, decl.Decl)
		}
		return true
	})
	return local
}

func addDurations(to map[string]float64, decl ast.Decl) {
	group, ok := decl.(*ast.GenDecl)
	if !ok || group.Tok != token.CONST {
		return
	}
	for _, spec := range group.Specs {
		value, ok := spec.(*ast.ValueSpec)
		if !ok || len(value.Names) != len(value.Values) {
			continue
		}
		for i, name := range value.Names {
			if d, ok := seconds(value.Values[i], to); ok {
				to[name.Name] = d
			}
		}
	}
}

// seconds evaluates a constant duration; ok is false for all other expressions.
func seconds(e ast.Expr, limits map[string]float64) (d float64, ok bool) {
	d, isTime, ok := quantity(e, limits)
	return d, ok && isTime
}

// quantity evaluates a constant duration or a number.
func quantity(e ast.Expr, limits map[string]float64) (d float64, isTime, ok bool) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return quantity(e.X, limits)
	case *ast.BasicLit:
		n, err := strconv.ParseFloat(e.Value, 64)
		return n, false, err == nil
	case *ast.Ident:
		d, ok = limits[e.Name]
		return d, true, ok
	case *ast.SelectorExpr:
		d, ok = units[e.Sel.Name]
		return d, true, ok && isName(e.X, "time")
	case *ast.BinaryExpr:
		x, isTime, ok := quantity(e.X, limits)
		y, isTime2, ok2 := quantity(e.Y, limits)
		switch e.Op {
		case token.MUL:
			d = x * y
		case token.QUO:
			d = x / y
		case token.ADD:
			d = x + y
		default:
			ok = false
		}
		return d, isTime || isTime2, ok && ok2
	}
	return 0, false, false
}

// units are the durations of package time in seconds.
var units = map[string]float64{"Nanosecond": 1e-9, "Microsecond": 1e-6, "Millisecond": 1e-3, "Second": 1, "Minute": 60, "Hour": 3600}

// atLeast reports whether an expression is a constant duration of at least the given number of seconds.
func atLeast(e ast.Expr, least float64, limits map[string]float64) bool {
	d, ok := seconds(e, limits)
	return ok && d >= least
}
