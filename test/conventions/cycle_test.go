package conventions

import (
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// cyclePage describes the cells of the agent that depend on each other in a cycle through tables.
const cyclePage = "Documentation/cycle.md"

// contributions are the types by which a cell adds rows to the table of another cell, or writes statuses there, with the type of the rows; "" for a table that no
// cell reads.
var contributions = map[string]string{
	"pkg/tables/bpfendpoints.HostWriter": "pkg/tables/bpfendpoints.Address",
	"pkg/tables/desiredroutes.Writer":    "pkg/tables/desiredroutes.Route",
	"pkg/tables/driftrepairs.Writer":     "",
	"pkg/tables/frontends.Statuses":      "pkg/tables/frontends.Frontend",
	"pkg/tables/ipcache.Writer":          "pkg/tables/ipcache.Entry",
	"pkg/tables/sysctls.Writer":          "pkg/tables/sysctls.Setting",
}

// statuses are the rows whose owner does not read what another cell adds: servicecontroller computes frontends and decides nothing by their statuses.
const statuses = "pkg/tables/frontends.Frontend"

// edge is a table, by the type of its rows, that a cell writes and another one reads.
type edge struct{ writer, reader string }

// TestCycle_PageNamesItsCellsAndEdges computes the graph of the cells of the agent, from each cell that writes a table to each cell that reads the table. It fails
// if a cell joins or leaves the cycle of this graph, or if an edge against the order of the page is new or gone.
func TestCycle_PageNamesItsCellsAndEdges(t *testing.T) {
	t.Parallel()
	all := files(t)
	graph := tableGraph(all, cellsOfAgent(all))
	if len(graph) < 100 {
		t.Fatalf("only %d edges found: the search is broken", len(graph))
	}
	page := read(t, cyclePage)
	order := orderOfPage(page)
	cycle := cycleOf(graph)
	for _, name := range cycle {
		if !slices.Contains(order, name) {
			t.Errorf("%s has joined the cycle of cells: it writes for %q and reads from %q; avoid one of these tables, or add the cell to %s",
				name, neighbours(graph, cycle, name, true), neighbours(graph, cycle, name, false), cyclePage)
		}
	}
	for _, name := range order {
		if !slices.Contains(cycle, name) {
			t.Errorf("%s has left the cycle of cells: remove it from %s", name, cyclePage)
		}
	}
	explained, drawn := edgesOfPage(page)
	for e, rows := range graph {
		from, to := slices.Index(order, e.writer), slices.Index(order, e.reader)
		if from < 0 || to < 0 || from < to {
			continue
		}
		if explained[e] == "" {
			t.Errorf("%s reads rows of %s (%q) against the order of %s: explain there why", e.reader, e.writer, rows, cyclePage)
		}
	}
	tables := read(t, "Documentation/tables.md")
	for e, table := range explained {
		if graph[e] == nil || slices.Index(order, e.writer) < slices.Index(order, e.reader) {
			t.Errorf("%s explains why %s reads %s of %s, which is no edge against the order any more", cyclePage, e.reader, table, e.writer)
		}
		if !regexp.MustCompile("(?m)^\\| `" + table + "` \\| [^|]* \\| " + e.writer + " \\|").MatchString(tables) {
			t.Errorf("%s: %s does not write the table %s", cyclePage, e.writer, table)
		}
	}
	if !maps.Equal(explained, drawn) {
		t.Errorf("%s explains %v and draws %v", cyclePage, explained, drawn)
	}
}

func TestCycle_PageNamesItsCellsAndEdges_Finds(t *testing.T) {
	t.Parallel()
	const tables = module + "pkg/tables/"
	var all []file
	for dir, source := range map[string]string{
		"cells/domain/a":    `import x "` + tables + `x"; type params struct { T statedb.RWTable[*x.Row]; U statedb.Table[y] }; type y = int`,
		"cells/domain/b":    `import "` + tables + `x"; import "` + tables + `z"; func run(in statedb.Table[*x.Row], out statedb.RWTable[z.Row]) {}`,
		"cells/domain/c":    `import "` + module + `pkg/both"; type params struct { both.Tables }`,
		"cells/domain/d":    `import "` + tables + `sysctls"; type params struct { W sysctls.Writer }`,
		"cells/domain/e":    `import "` + tables + `sysctls"; import "` + tables + `w"; type params struct { T statedb.RWTable[*sysctls.Setting]; W statedb.RWTable[w.Row] }`,
		"cells/domain/f":    `import "` + tables + `x"; type params struct { T statedb.Table[*x.Row] }`,
		"pkg/both":          `import "` + tables + `w"; import "` + tables + `z"; type Tables struct { W statedb.Table[w.Row]; Z statedb.Table[z.Row] }`,
		"cells/domain/a/in": `import "` + tables + `z"; type params struct { Z statedb.Table[z.Row] }`,
	} {
		f := parse(t, "package p\n"+source)
		f.dir, f.path = dir, dir+"/a.go"
		all = append(all, f)
	}
	graph := tableGraph(all, []string{"a", "b", "c", "d", "e"}) // without f
	want := []edge{{"a", "b"}, {"b", "a"}, {"b", "c"}, {"d", "e"}, {"e", "c"}}
	got := slices.SortedFunc(maps.Keys(graph), func(a, b edge) int { return strings.Compare(a.writer+a.reader, b.writer+b.reader) })
	if !slices.Equal(got, want) {
		t.Errorf("edges %v, want %v", got, want)
	}
	if got := cycleOf(graph); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("cycle %q, want a and b", got)
	}
	explained, drawn := edgesOfPage("```\nin:   a b\nout:  c\nb -- z --> a\n```\n\n| `b` → `a` | `z` | because |\n")
	if want := map[edge]string{{"b", "a"}: "z"}; !maps.Equal(explained, want) || !maps.Equal(drawn, want) {
		t.Errorf("explained %v, drawn %v, want %v", explained, drawn, want)
	}
	if got := orderOfPage("text: x\n```\nin:   a b\nout:  c\nb -- z --> a\n```\n"); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("order %q, want a, b, c", got)
	}
}

// Each type by which a cell writes rows of another cell's table is in contributions.
func TestCycle_KnowsAllContributions(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, f := range files(t) {
		if f.test() || !strings.HasPrefix(f.dir, "pkg/tables/") {
			continue
		}
		for name, spec := range typesOf(f) {
			_, isInterface := spec.Type.(*ast.InterfaceType)
			_, isStruct := spec.Type.(*ast.StructType)
			if isInterface && strings.HasSuffix(name, "Writer") || isStruct && slices.ContainsFunc(tableUses(f, spec), tableUse.writes) {
				found[f.dir+"."+name] = true
			}
		}
	}
	if have, want := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(contributions)); !slices.Equal(have, want) {
		t.Errorf("the packages of tables have %q, contributions lists %q", have, want)
	}
}

// cellsOfAgent returns the cells that run in the agent of a node.
func cellsOfAgent(all []file) (cells []string) {
	for _, f := range all {
		if f.path != "daemon/daemon.go" {
			continue
		}
		for _, name := range importsOf(f) {
			if cell := cellOf(strings.TrimPrefix(name, module)); cell != "" {
				cells = append(cells, cell)
			}
		}
	}
	return cells
}

// tableGraph returns the edges between cells, each with the types of the rows. A cell owns a table if its code has a writable one, and reads a table if its code has
// a read-only one, or a struct of pkg with such a table. The owner of a table also reads the contributions of other cells.
func tableGraph(all []file, cells []string) map[edge][]string {
	owners, contributors, readers := map[string][]string{}, map[string][]string{}, map[string][]string{}
	add := func(to map[string][]string, row, cell string) {
		if !slices.Contains(to[row], cell) {
			to[row] = append(to[row], cell)
		}
	}
	structs := structsWithTables(all)
	for _, f := range all {
		cell := cellOf(f.dir)
		if f.test() || !slices.Contains(cells, cell) {
			continue
		}
		for _, use := range tableUses(f, f.syntax) {
			if use.writable {
				add(owners, use.row, cell)
			} else {
				add(readers, use.row, cell)
			}
		}
		for _, name := range namesOf(f) {
			for _, row := range structs[name] {
				add(readers, row, cell)
			}
			if row := contributions[name]; row != "" {
				add(contributors, row, cell)
			}
		}
	}
	graph := map[edge][]string{}
	for row, owned := range owners {
		affected := slices.Clone(readers[row])
		if row != statuses {
			affected = append(affected, owned...)
		}
		for _, contributor := range contributors[row] {
			addEdges(graph, row, contributor, affected)
		}
		for _, owner := range owned {
			addEdges(graph, row, owner, readers[row])
		}
	}
	return graph
}

func addEdges(graph map[edge][]string, row, writer string, readers []string) {
	for _, reader := range readers {
		if e := (edge{writer, reader}); writer != reader && !slices.Contains(graph[e], row) {
			graph[e] = append(graph[e], row)
		}
	}
}

// tableUse is a table of statedb in a type.
type tableUse struct {
	row      string // type of the rows: the folder of its package and the name
	writable bool
}

func (u tableUse) writes() bool { return u.writable }

// tableUses returns the types statedb.Table[row] and statedb.RWTable[row] in a part of a file.
func tableUses(f file, part ast.Node) (uses []tableUse) {
	imported := importsOf(f)
	ast.Inspect(part, func(n ast.Node) bool {
		index, ok := n.(*ast.IndexExpr)
		if !ok {
			return true
		}
		of, ok := index.X.(*ast.SelectorExpr)
		if !ok || !isName(of.X, "statedb") || of.Sel.Name != "Table" && of.Sel.Name != "RWTable" {
			return true
		}
		row := index.Index
		if pointer, ok := row.(*ast.StarExpr); ok {
			row = pointer.X
		}
		if name := qualified(f, imported, row); name != "" {
			uses = append(uses, tableUse{name, of.Sel.Name == "RWTable"})
		}
		return true
	})
	return uses
}

// qualified returns the folder and the name of a type of this module; "" for other types.
func qualified(f file, imported map[string]string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return f.dir + "." + e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if dir, ours := strings.CutPrefix(imported[x.Name], module); ours {
				return dir + "." + e.Sel.Name
			}
		}
	}
	return ""
}

// namesOf returns all names of other packages of this module that a file uses, with their folders.
func namesOf(f file) (names []string) {
	imported := importsOf(f)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if e, ok := n.(*ast.SelectorExpr); ok {
			if name := qualified(f, imported, e); name != "" {
				names = append(names, name)
			}
		}
		return true
	})
	return names
}

// importsOf returns the imported packages by their names in a file.
func importsOf(f file) map[string]string {
	imported := map[string]string{}
	for _, spec := range f.syntax.Imports {
		from, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(from)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = from
	}
	return imported
}

// typesOf returns the types that a file declares.
func typesOf(f file) map[string]*ast.TypeSpec {
	specs := map[string]*ast.TypeSpec{}
	for _, decl := range f.syntax.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.TYPE {
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					specs[s.Name.Name] = s
				}
			}
		}
	}
	return specs
}

// structsWithTables returns the structs of packages with read-only tables, such as the inputs of readiness, with the types of the rows.
func structsWithTables(all []file) map[string][]string {
	structs := map[string][]string{}
	for _, f := range all {
		if f.test() || !strings.HasPrefix(f.dir, "pkg/") {
			continue
		}
		for name, spec := range typesOf(f) {
			if _, ok := spec.Type.(*ast.StructType); !ok {
				continue
			}
			for _, use := range tableUses(f, spec) {
				if !use.writable {
					structs[f.dir+"."+name] = append(structs[f.dir+"."+name], use.row)
				}
			}
		}
	}
	return structs
}

// cycleOf returns the nodes that reach themselves, sorted.
func cycleOf(graph map[edge][]string) (cycle []string) {
	next, nodes := map[string][]string{}, map[string]bool{}
	for e := range graph {
		next[e.writer] = append(next[e.writer], e.reader)
		nodes[e.writer] = true
	}
	for _, start := range slices.Sorted(maps.Keys(nodes)) {
		seen, pending := map[string]bool{}, slices.Clone(next[start])
		for len(pending) > 0 {
			node := pending[len(pending)-1]
			pending = pending[:len(pending)-1]
			if !seen[node] {
				seen[node] = true
				pending = append(pending, next[node]...)
			}
		}
		if seen[start] {
			cycle = append(cycle, start)
		}
	}
	return cycle
}

// neighbours returns the cells of the cycle that read rows of a cell, or of which it reads rows.
func neighbours(graph map[edge][]string, cycle []string, name string, reading bool) (list []string) {
	for _, other := range cycle {
		e := edge{other, name}
		if reading {
			e = edge{name, other}
		}
		if graph[e] != nil {
			list = append(list, other)
		}
	}
	return list
}

var (
	block   = regexp.MustCompile("(?s)\n```\n(.*?)\n```\n")
	layer   = regexp.MustCompile(`(?m)^[a-z ]+: +(.+)$`)
	drawing = regexp.MustCompile(`(?m)^(\w+) -- (\S+) --> (\w+)$`)
	entry   = regexp.MustCompile("(?m)^\\| `(\\w+)` → `(\\w+)` \\| `([\\w-]+)` \\|")
)

// orderOfPage returns the cells in the first code block of the page, in their order.
func orderOfPage(page string) (cells []string) {
	for _, line := range layer.FindAllStringSubmatch(block.FindString(page), -1) {
		cells = append(cells, strings.Fields(line[1])...)
	}
	return cells
}

// edgesOfPage returns the edges in the table and in the first code block of the page, each with its table.
func edgesOfPage(page string) (explained, drawn map[edge]string) {
	explained, drawn = map[edge]string{}, map[edge]string{}
	for _, r := range entry.FindAllStringSubmatch(page, -1) {
		explained[edge{r[1], r[2]}] = r[3]
	}
	for _, d := range drawing.FindAllStringSubmatch(page, -1) {
		drawn[edge{d[1], d[3]}] = d[2]
	}
	return explained, drawn
}
