package conventions

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// domains are the folders of cells, in the order of package daemon and of Documentation/cells/README.md.
var domains = []string{"endpoint", "identity", "policy", "service", "node", "datapath", "kubernetes", "cluster", "agent"}

// TestCells_HavePagesAndScripts requires for each cell a design page, a script that demonstrates the cell, and a line in the page of its domain.
func TestCells_HavePagesAndScripts(t *testing.T) {
	t.Parallel()
	if found := folders(t, "cells"); !slices.Equal(found, slices.Sorted(slices.Values(domains))) {
		t.Errorf("cells has the folders %q, want %q", found, domains)
	}
	for _, domain := range domains {
		overview := read(t, "Documentation/cells/"+domain+"/README.md")
		for _, cell := range folders(t, "cells/"+domain) {
			page := "Documentation/cells/" + domain + "/" + cell + ".md"
			if _, err := os.Stat(filepath.Join(root(t), page)); err != nil {
				t.Errorf("cells/%s/%s has no page %s", domain, cell, page)
			}
			if !strings.Contains(overview, "["+cell+"]("+cell+".md)") {
				t.Errorf("the page of the domain %s does not name its cell %s", domain, cell)
			}
			scripts, err := filepath.Glob(filepath.Join(root(t), "cells", domain, cell, "testdata", "*.txtar"))
			if err != nil || len(scripts) == 0 {
				t.Errorf("cells/%s/%s has no script in testdata (%v)", domain, cell, err)
			}
		}
	}
}

// TestDomains_HaveOneOrder compares the order of the domains in package daemon and in the documentation.
func TestDomains_HaveOneOrder(t *testing.T) {
	t.Parallel()
	for name, pattern := range map[string]string{
		"Documentation/cells/README.md": `(?m)^\| \[([a-z]+)\]\(([a-z]+)/README\.md\) \|`,
		"daemon/daemon.go":              `(?m)^// [A-Z][a-z]+ lists the domain ([a-z]+),`,
	} {
		var found []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, name), -1) {
			found = append(found, match[1])
		}
		want := domains
		if name == "daemon/daemon.go" { // the cells of the domain cluster run in the cluster role alone
			want = slices.DeleteFunc(slices.Clone(domains), func(domain string) bool { return domain == "cluster" })
		}
		if !slices.Equal(found, want) {
			t.Errorf("%s has the domains %q, want %q", name, found, want)
		}
	}
}

// families are the folders of pkg that hold several packages of one subject. No family needs another one.
var families = []string{"pkg/kubernetes/", "pkg/datapath/", "pkg/policy/"}

// TestFamilies_AreClosed permits imports of a family only inside the family and from packages outside of all families.
func TestFamilies_AreClosed(t *testing.T) {
	t.Parallel()
	in := func(dir string) string {
		if i := slices.IndexFunc(families, func(f string) bool { return strings.HasPrefix(dir+"/", f) }); i >= 0 {
			return families[i]
		}
		return ""
	}
	for _, f := range files(t) {
		own := in(f.dir)
		if own == "" || f.test() {
			continue
		}
		for _, spec := range f.syntax.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			local, ours := strings.CutPrefix(name, module)
			if other := in(local); ours && other != "" && other != own {
				t.Errorf("%s: imports %s of another family", f.at(spec.Pos()), local)
			}
		}
	}
}

// sharedNames are package names that two folders may have, each with the reason.
var sharedNames = map[string]string{
	"main":    "programs",
	"install": "the manifests, and their tests on a real Kubernetes",
}

// TestPackages_HaveDistinctNames requires a name of its own for each package, so that no importer must choose another one. Package hive creates the hives of
// another module's package hive.
func TestPackages_HaveDistinctNames(t *testing.T) {
	t.Parallel()
	dirs := map[string]string{}
	for _, f := range files(t) {
		name := f.syntax.Name.Name
		if strings.HasSuffix(name, "_test") || sharedNames[name] != "" {
			continue
		}
		if other, ok := dirs[name]; ok && other != f.dir {
			t.Errorf("%s and %s both hold a package %s", other, f.dir, name)
		}
		dirs[name] = f.dir
	}
}

// cellOf returns the name of the cell that a folder belongs to; "" outside of cells/DOMAIN/CELL.
func cellOf(dir string) string {
	if parts := strings.Split(dir, "/"); parts[0] == "cells" && len(parts) >= 3 {
		return parts[2]
	}
	return ""
}

// folders lists the folders in a folder, sorted.
func folders(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root(t), dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
