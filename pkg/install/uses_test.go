package install

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPermissions_CoverTheCells checks that the table lists, under the name of the cell, every request for a resource that its code names. Only the
// audit log of the tests on a real Kubernetes finds a resource in a variable.
func TestPermissions_CoverTheCells(t *testing.T) {
	t.Parallel()
	granted := map[string]bool{}
	for _, p := range Permissions() {
		for _, verb := range p.Verbs {
			resource, _, _ := strings.Cut(p.Resource, "/")
			granted[p.Cell+" "+verb+" "+resource] = true
		}
	}
	seen := 0
	err := filepath.WalkDir("../../cells", func(name string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		cell := strings.Split(filepath.ToSlash(name), "/")[4] // ../../cells/DOMAIN/CELL
		ast.Inspect(syntax, func(n ast.Node) bool {
			if verb, resource := request(n); resource != "" {
				seen++
				if use := cell + " " + verb + " " + resource; !granted[use] {
					t.Errorf("%s: the table of permissions does not have %q", name, use)
				}
			}
			return true
		})
		return nil
	})
	if err != nil || seen < 10 {
		t.Errorf("%d requests found, %v: the search is broken", seen, err)
	}
}

// request recognizes agentclient.Verb(ctx, kubeapi.Resource, ...) and returns verb and resource in lower case.
func request(n ast.Node) (verb, resource string) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) < 3 {
		return "", ""
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	argument := call.Args[1]
	if narrowed, ok := argument.(*ast.CallExpr); ok { // kubeapi.Pods.MetadataOnly()
		if inner, ok := narrowed.Fun.(*ast.SelectorExpr); ok {
			argument = inner.X
		}
	}
	named, ok := argument.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if pkg, ok := named.X.(*ast.Ident); !ok || pkg.Name != "kubeapi" {
		return "", ""
	}
	return strings.ToLower(method.Sel.Name), strings.ToLower(named.Sel.Name)
}
