package conventions

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The package comment of each cell has the sentences "Tables in: ...", "Tables out: ..." and, if other cells own tables to which it adds rows,
// "Tables contributed to: ..." (or "Table ..."). A list is free text in which the names of tables count, outside of parentheses. [package.Type] stands for the
// tables in the fields of a type below pkg/. "In" lists the tables of other cells that the code can read, "out" the tables that it makes.
const (
	labelIn  = "in"
	labelOut = "out"
	labelTo  = "contributed to"
)

// contributors are the types with which a cell writes into a table of another cell.
var contributors = map[symbol]string{
	{"pkg/tables/bpfendpoints", "HostWriter"}: "bpf-endpoints",
	{"pkg/tables/desiredroutes", "Writer"}:    "desired-routes",
	{"pkg/tables/driftrepairs", "Writer"}:     "", // each cell that verifies its objects reports its findings
	{"pkg/tables/frontends", "Statuses"}:      "frontends",
	{"pkg/tables/ipcache", "Writer"}:          "ipcache",
	{"pkg/tables/sysctls", "Writer"}:          "sysctls",
}

// A list that nothing compares with the code becomes wrong when the code changes.
func TestCells_CommentsListTheirTables(t *testing.T) {
	t.Parallel()
	index := indexTables(files(t))
	if len(index.makers) < 90 {
		t.Fatalf("only %d tables found: the search is broken", len(index.makers))
	}
	for s := range index.types {
		if _, known := contributors[s]; !known && strings.HasPrefix(s.dir, "pkg/tables/") && ast.IsExported(s.name) && strings.HasSuffix(s.name, "Writer") {
			t.Errorf("%s.%s is not in contributors: add it with its table", s.dir, s.name)
		}
	}
	for s := range contributors {
		if _, exists := index.types[s]; !exists {
			t.Errorf("contributors names %s.%s, which does not exist", s.dir, s.name)
		}
	}
	cells := cellsOf(files(t))
	if len(cells) < 60 {
		t.Fatalf("only %d cells found: the search is broken", len(cells))
	}
	for _, name := range slices.Sorted(maps.Keys(cells)) {
		for _, wrong := range index.wrong(cells[name]) {
			t.Errorf("cell %s: the package comment %s", name, wrong)
		}
	}
}

func TestCells_CommentsListTheirTables_Finds(t *testing.T) {
	t.Parallel()
	at := func(path, source string) file {
		fset := token.NewFileSet()
		syntax, err := parser.ParseFile(fset, path, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir, _, _ := strings.Cut(path, "/a.go")
		return file{path: path, dir: dir, source: []byte(source), syntax: syntax, fset: fset}
	}
	const row = `type Row struct{}
func NewTable(db *statedb.DB) (statedb.RWTable[*Row], error) { return statedb.NewTable(db, "NAME") }
type Writer interface { Add() }`
	common := []file{
		at("pkg/tables/ants/a.go", "package ants\n"+strings.ReplaceAll(row, "NAME", "ants")),
		at("pkg/tables/bees/a.go", "package bees\n"+strings.ReplaceAll(row, "NAME", "bees")),
		at("pkg/tables/sysctls/a.go", "package sysctls\n"+strings.ReplaceAll(row, "NAME", "sysctls")),
		at("pkg/hive/a.go", "package hive\nimport \""+module+"pkg/tables/bees\"\ntype Tables struct { Bees statedb.Table[*bees.Row] }"),
	}
	const imports = "package cell\nimport (\n\"" + module + "pkg/tables/ants\"\n\"" + module + "pkg/tables/bees\"\n\"" + module + "pkg/tables/sysctls\"\n\"" + module + "pkg/hive\"\n)\n"
	for name, tc := range map[string]struct {
		comment, code string
		want          int
	}{
		"right":                   {"Tables in: ants (of others), bees. Tables out: none.", "type p struct { a statedb.Table[*ants.Row]; b statedb.Table[*bees.Row] }", 0},
		"one table":               {"Table in: ants. Table out: bees.", "type p struct { a statedb.Table[*ants.Row] }\nvar made = bees.NewTable", 0},
		"own table is read":       {"Tables in: none. Table out: bees.", "type p struct { a statedb.Table[*bees.Row] }\nvar made = bees.NewTable", 0},
		"type of a library":       {"Tables in: those of [hive.Tables]. Tables out: none.", "type p struct { hive.Tables }", 0},
		"named, of a library":     {"Table in: bees. Tables out: none.", "type p struct { hive.Tables }", 0},
		"library is not listed":   {"Tables in: none. Tables out: none.", "type p struct { hive.Tables }", 1},
		"missing":                 {"Table in: ants. Tables out: none.", "type p struct { a statedb.Table[*ants.Row]; b statedb.Table[*bees.Row] }", 1},
		"stale":                   {"Tables in: ants, bees. Tables out: none.", "type p struct { a statedb.Table[*ants.Row] }", 1},
		"made, not listed":        {"Tables in: none. Tables out: none.", "var made = bees.NewTable", 1},
		"only in parentheses":     {"Tables in: none (bees). Tables out: none.", "type p struct { b statedb.Table[*bees.Row] }", 1},
		"no lists":                {"It reads bees.", "type p struct { b statedb.Table[*bees.Row] }", 2},
		"contributes":             {"Tables in: none. Tables out: none. Table contributed to: sysctls (owner \"cell\").", "type p struct { w sysctls.Writer }", 0},
		"contribution not listed": {"Tables in: none. Tables out: none.", "type p struct { w sysctls.Writer }", 1},
		"no such type":            {"Tables in: those of [hive.Comb]. Tables out: none.", "", 1},
	} {
		code := at("cells/domain/cell/a.go", "// Package cell is a cell. "+tc.comment+"\n"+imports+tc.code)
		index := indexTables(append(slices.Clone(common), code))
		if got := index.wrong(cellsOf([]file{code})["cell"]); len(got) != tc.want {
			t.Errorf("%s: found %q, want %d", name, got, tc.want)
		}
	}
}

// symbol is a type or function, by the folder of its package.
type symbol struct{ dir, name string }

// tableIndex knows the tables of the tree, and the types through which code gets them.
type tableIndex struct {
	makers map[symbol]string      // name of the table that a constructor makes
	rows   map[symbol][]symbol    // constructors of the tables with a row type
	types  map[symbol]declaration // types of packages below pkg/
	memo   map[symbol]map[symbol]bool
}

type declaration struct {
	in  file
	def ast.Expr
}

// cellsOf returns the files of each cell, without tests, by the name of the folder.
func cellsOf(all []file) map[string][]file {
	cells := map[string][]file{}
	for _, f := range all {
		if cell := cellOf(f.dir); cell != "" && !f.test() {
			cells[cell] = append(cells[cell], f)
		}
	}
	return cells
}

func indexTables(all []file) *tableIndex {
	x := &tableIndex{makers: map[symbol]string{}, rows: map[symbol][]symbol{}, types: map[symbol]declaration{}, memo: map[symbol]map[symbol]bool{}}
	for _, f := range all {
		library := strings.HasPrefix(f.dir, "pkg/")
		if f.test() || !library && !strings.HasPrefix(f.dir, "cells/") {
			continue
		}
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				x.addMaker(f, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && library {
						x.types[symbol{f.dir, s.Name.Name}] = declaration{f, s.Type}
					}
				}
			}
		}
	}
	return x
}

// addMaker adds a function that makes a table and returns it first.
func (x *tableIndex) addMaker(f file, fn *ast.FuncDecl) {
	if fn.Recv != nil || fn.Type.Results == nil || len(fn.Type.Results.List) == 0 {
		return
	}
	kind, row := tableOf(fn.Type.Results.List[0].Type)
	if kind != "RWTable" {
		return
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || calleeOf(call) != "statedb.NewTable" || len(call.Args) < 2 {
			return true
		}
		if lit, ok := call.Args[1].(*ast.BasicLit); ok {
			maker, of := symbol{f.dir, fn.Name.Name}, f.resolve(row)
			x.makers[maker], _ = strconv.Unquote(lit.Value)
			x.rows[of] = append(x.rows[of], maker)
		}
		return true
	})
}

// tableOf returns "Table" or "RWTable" and the type of the rows, if n is such a type of statedb.
func tableOf(n ast.Node) (kind string, row ast.Expr) {
	index, ok := n.(*ast.IndexExpr)
	if !ok {
		return "", nil
	}
	s, ok := index.X.(*ast.SelectorExpr)
	if !ok || !isName(s.X, "statedb") || s.Sel.Name != "Table" && s.Sel.Name != "RWTable" {
		return "", nil
	}
	return s.Sel.Name, index.Index
}

// resolve returns the symbol that an expression names; it is empty for symbols of other modules.
func (f file) resolve(e ast.Expr) symbol {
	switch e := e.(type) {
	case *ast.StarExpr:
		return f.resolve(e.X)
	case *ast.Ident:
		return symbol{f.dir, e.Name}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if dir := f.imported(x.Name); dir != "" {
				return symbol{dir, e.Sel.Name}
			}
		}
	}
	return symbol{}
}

// imported returns the folder of the package of this module that a file imports by a name.
func (f file) imported(name string) string {
	for _, spec := range f.syntax.Imports {
		full, _ := strconv.Unquote(spec.Path.Value)
		dir, ours := strings.CutPrefix(full, module)
		local := path.Base(full)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if ours && local == name {
			return dir
		}
	}
	return ""
}

// reach returns the types of the rows of tables that a type has in its fields, also through other types of its package and of packages below pkg/.
func (x *tableIndex) reach(s symbol) map[symbol]bool {
	if _, done := x.memo[s]; !done {
		x.memo[s] = map[symbol]bool{}
		x.walk(s, map[symbol]bool{}, x.memo[s])
	}
	return x.memo[s]
}

// walk adds the types of rows below a type to rows, except below the types that it has seen.
func (x *tableIndex) walk(s symbol, seen, rows map[symbol]bool) {
	d, known := x.types[s]
	def, isStruct := d.def.(*ast.StructType)
	if !known || !isStruct || seen[s] {
		return
	}
	seen[s] = true
	for _, field := range def.Fields.List {
		ast.Inspect(field.Type, func(n ast.Node) bool {
			if kind, row := tableOf(n); kind != "" {
				if kind == "Table" {
					rows[d.in.resolve(row)] = true
				}
				return false
			}
			switch n := n.(type) {
			case *ast.SelectorExpr:
				x.walk(d.in.resolve(n), seen, rows)
				return false
			case *ast.Ident:
				x.walk(symbol{d.in.dir, n.Name}, seen, rows)
			}
			return true
		})
	}
}

// uses are the tables that the code of a cell reads, makes and contributes to.
type uses struct{ in, out, to map[string]bool }

func (x *tableIndex) usesOf(cell []file) uses {
	u := uses{in: map[string]bool{}, out: map[string]bool{}, to: map[string]bool{}}
	read := map[symbol]bool{}
	for _, f := range cell {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if kind, row := tableOf(n); kind == "Table" {
				read[f.resolve(row)] = true
			}
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			s := f.resolve(e)
			if table, ok := x.makers[s]; ok {
				u.out[table] = true
			}
			if table := contributors[s]; table != "" {
				u.to[table] = true
			}
			if _, ok := e.(*ast.SelectorExpr); ok && strings.HasPrefix(s.dir, "pkg/") {
				maps.Copy(read, x.reach(s))
			}
			return true
		})
	}
	for table := range u.out {
		delete(u.to, table)
	}
	x.addTables(u.in, read, u.out)
	return u
}

// addTables adds the tables with the given types of rows, except the cell's own. Of several tables with one type, a cell means its own, or else the one whose
// constructor has the name of the type.
func (x *tableIndex) addTables(to map[string]bool, rows map[symbol]bool, own map[string]bool) {
	for row := range rows {
		makers := x.rows[row]
		if slices.ContainsFunc(makers, func(m symbol) bool { return own[x.makers[m]] }) {
			continue
		}
		for _, m := range makers {
			if len(makers) == 1 || m.dir == row.dir && (m.name == "NewTable" || m.name == "New"+row.name+"Table") {
				to[x.makers[m]] = true
			}
		}
	}
}

// wrong returns the differences between the lists in a cell's package comment and its code.
func (x *tableIndex) wrong(cell []file) (all []string) {
	var comments []string
	for _, f := range cell {
		if f.syntax.Doc != nil && len(strings.Split(f.dir, "/")) == 3 { // not of a folder inside of the cell's
			comments = append(comments, f.syntax.Doc.Text())
		}
	}
	comment := strings.Join(strings.Fields(strings.Join(comments, " ")), " ")
	u := x.usesOf(cell)
	for _, list := range []struct {
		label string
		want  map[string]bool
	}{{labelIn, u.in}, {labelOut, u.out}, {labelTo, u.to}} {
		have, unknown, found := x.tablesIn(comment, list.label, u.out)
		if !found {
			if list.label != labelTo || len(list.want) > 0 {
				all = append(all, "has no list \"Tables "+list.label+": ...\", want "+strings.Join(slices.Sorted(maps.Keys(list.want)), ", "))
			}
			continue
		}
		for _, name := range unknown {
			all = append(all, "lists ["+name+"], which is no type below pkg/")
		}
		for _, name := range slices.Sorted(maps.Keys(list.want)) {
			if !have[name] {
				all = append(all, "lacks "+name+" in \"Tables "+list.label+"\"")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			if own := list.label == labelIn && u.out[name]; !list.want[name] && !own {
				all = append(all, "lists "+name+" in \"Tables "+list.label+"\", which is not in the code")
			}
		}
	}
	return all
}

var (
	parentheses = regexp.MustCompile(`\([^()]*\)`)
	typeLink    = regexp.MustCompile(`\[([\w.]+)\]`)
	separators  = regexp.MustCompile(`[\s,;]+`)
)

// tablesIn returns the tables in a list of a comment, and the links to types that do not exist.
func (x *tableIndex) tablesIn(comment, label string, own map[string]bool) (tables map[string]bool, unknown []string, found bool) {
	match := regexp.MustCompile(`\bTables? ` + label + `: (.*?)\.(?: |$)`).FindStringSubmatch(comment)
	if match == nil {
		return nil, nil, false
	}
	list := parentheses.ReplaceAllString(match[1], "")
	tables = map[string]bool{}
	for _, link := range typeLink.FindAllStringSubmatch(list, -1) {
		known := false
		for s := range x.types {
			if path.Base(s.dir)+"."+s.name == link[1] {
				known = true
				x.addTables(tables, x.reach(s), own)
			}
		}
		if !known {
			unknown = append(unknown, link[1])
		}
	}
	names := slices.Collect(maps.Values(x.makers))
	for _, word := range separators.Split(typeLink.ReplaceAllString(list, ""), -1) {
		if slices.Contains(names, word) {
			tables[word] = true
		}
	}
	return tables, unknown, true
}
