package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// constructor is a function that makes a table.
type constructor struct{ dir, function string } // folder relative to the root

// findWriters maps the name of each table to the cell that makes it: the one whose code names the table's constructor.
func findWriters(root string) (map[string]string, error) {
	names := map[constructor]string{}
	writers := map[string]string{}
	visit := func(file string, fn func(dir string, f *ast.File)) error {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(dir), f)
		return nil
	}
	for _, pass := range []struct {
		glob string
		fn   func(dir string, f *ast.File)
	}{
		{"pkg/tables/*/*.go", func(dir string, f *ast.File) { collect(dir, f, names) }},
		{"cells/*/*/*.go", func(dir string, f *ast.File) { collect(dir, f, names) }},
		{"cells/*/*/*/*.go", func(dir string, f *ast.File) { collect(dir, f, names) }}, // of cells that have outgrown their folder
		{"cells/*/*/*.go", func(dir string, f *ast.File) { attribute(dir, f, names, writers) }},
		{"cells/*/*/*/*.go", func(dir string, f *ast.File) { attribute(dir, f, names, writers) }},
	} {
		files, err := filepath.Glob(filepath.Join(root, pass.glob))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			if err := visit(file, pass.fn); err != nil {
				return nil, err
			}
		}
	}
	return writers, nil
}

// collect finds the functions that call statedb.NewTable with a name.
func collect(dir string, f *ast.File, names map[constructor]string) {
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 || !isSelector(call.Fun, "statedb", "NewTable") {
				return true
			}
			if name, ok := call.Args[1].(*ast.BasicLit); ok {
				names[constructor{dir, fn.Name.Name}], _ = strconv.Unquote(name.Value)
			}
			return true
		})
	}
}

// attribute finds mentions of constructors in a cell.
func attribute(dir string, f *ast.File, names map[constructor]string, writers map[string]string) {
	imports := map[string]string{} // local name -> folder
	for _, spec := range f.Imports {
		full, _ := strconv.Unquote(spec.Path.Value)
		local, ours := strings.CutPrefix(full, "github.com/waggle-net/waggle/")
		if !ours {
			continue
		}
		name := path.Base(full)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = local
	}
	cell := strings.Split(dir, "/")[2] // cells/DOMAIN/CELL
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				if table, ok := names[constructor{imports[x.Name], n.Sel.Name}]; ok {
					writers[table] = cell
				}
			}
		case *ast.Ident:
			if table, ok := names[constructor{dir, n.Name}]; ok {
				writers[table] = cell
			}
		}
		return true
	})
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}
