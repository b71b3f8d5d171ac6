package conventions

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The lists of README.md are the only lists of what works. Each entry ends in a comment that names what makes it true: cells of package daemon and flags of the
// agent, or options of Cilium that the agent must not have. So a new cell or switch needs an entry, and an entry cannot deny an option that exists.
const (
	readmeWorks   = "What works today"
	readmeMissing = "What does not work yet"
)

// rootPages are the pages at the top of the tree.
var rootPages = []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}

func TestReadme_ListsCellsAndFlags(t *testing.T) {
	t.Parallel()
	tree := readmeTree{flags: flagNames(read(t, "pkg/install/flags.txt")), foreign: strings.Fields(strings.ReplaceAll(read(t, "pkg/config/foreign_keys.go"), "`", " "))}
	for _, f := range files(t) {
		if f.dir == "daemon" && !f.test() {
			tree.cells = append(tree.cells, cellNames(f)...)
		}
	}
	if len(tree.cells) < 60 || len(tree.flags) < 100 || len(tree.foreign) < 300 {
		t.Fatalf("%d cells, %d flags, %d options of Cilium: the search is broken", len(tree.cells), len(tree.flags), len(tree.foreign))
	}
	for _, wrong := range tree.wrong(read(t, "README.md")) {
		t.Error("README.md: " + wrong)
	}
}

func TestReadme_ListsCellsAndFlags_Finds(t *testing.T) {
	t.Parallel()
	tree := readmeTree{cells: []string{"bees", "hive"}, flags: []string{"enable-bees", "hive-size"}, foreign: []string{"enable-bees", "enable-ants"}}
	const works = "# Page\n\n## What works today\n\nText.\n\n- Bees (`--enable-bees`).\n  <!-- cells: bees; flags: enable-bees -->\n- A hive.\n  <!-- cells: hive -->\n"
	const missing = "\n## What does not work yet\n\n- No ants.\n  <!-- no flags: enable-ants -->\n\n## More\n"
	for name, tc := range map[string]struct {
		page string
		want int
	}{
		"right":             {works + missing, 0},
		"cell is unnamed":   {strings.Replace(works, "cells: hive", "flags: hive-size", 1) + missing, 1},
		"switch is unnamed": {strings.Replace(works, "; flags: enable-bees", "", 1) + missing, 1},
		"no such cell":      {strings.Replace(works, "cells: hive", "cells: hive wasps", 1) + missing, 1},
		"no such flag":      {strings.Replace(works, "cells: hive", "cells: hive; flags: wasps", 1) + missing, 1},
		"no comment":        {works + "- Wasps.\n" + missing, 1},
		"other label":       {strings.Replace(works, "cells: hive", "cells: hive; wings: two", 1) + missing, 1},
		"denied, exists":    {works + strings.Replace(missing, "enable-ants", "enable-bees", 1), 1},
		"denied, unknown":   {works + strings.Replace(missing, "enable-ants", "enable-wasps", 1), 1},
		"flag in the text":  {works + missing + "Set `--wasps=true`.\n", 1},
		"no lists":          {"# Page\n", 5},
	} {
		if got := tree.wrong(tc.page); len(got) != tc.want {
			t.Errorf("%s: found %q, want %d", name, got, tc.want)
		}
	}
}

// readmeTree lists what entries of README.md may name.
type readmeTree struct {
	cells, flags []string
	foreign      []string // options of Cilium, and other words
}

func flagNames(list string) (names []string) {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" {
			names = append(names, fields[0])
		}
	}
	return names
}

// cellNames returns the cells that a file of package daemon takes from their folders.
func cellNames(f file) (names []string) {
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if name := cellOf(f.resolve(s).dir); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return true
	})
	return names
}

var (
	htmlComment = regexp.MustCompile(`(?s)<!-- (.*?) -->`)
	flagInText  = regexp.MustCompile(`--([a-z][a-z0-9-]*[a-z0-9])`)
)

// wrong returns the differences between the lists of a page and the tree.
func (r readmeTree) wrong(page string) (all []string) {
	named := map[string][]string{}
	for _, list := range []struct {
		heading string
		labels  []string
	}{{readmeWorks, []string{"cells", "flags"}}, {readmeMissing, []string{"no flags"}}} {
		entries := entriesOf(page, list.heading)
		if len(entries) == 0 {
			all = append(all, "no entries below "+list.heading)
		}
		for _, entry := range entries {
			comments := htmlComment.FindAllStringSubmatch(entry, -1)
			first, _, _ := strings.Cut(entry, "\n")
			if len(comments) != 1 {
				all = append(all, first+": want one comment with "+strings.Join(list.labels, " and "))
				continue
			}
			for part := range strings.SplitSeq(comments[0][1], "; ") {
				label, words, _ := strings.Cut(part, ": ")
				if !slices.Contains(list.labels, label) {
					all = append(all, first+": the comment has "+label+", want "+strings.Join(list.labels, " and "))
					continue
				}
				named[label] = append(named[label], strings.Fields(words)...)
			}
		}
	}
	for _, name := range named["cells"] {
		if !slices.Contains(r.cells, name) {
			all = append(all, "names the cell "+name+", which package daemon does not list")
		}
	}
	for _, name := range r.cells {
		if !slices.Contains(named["cells"], name) {
			all = append(all, "no entry below "+readmeWorks+" names the cell "+name)
		}
	}
	return append(all, r.wrongFlags(page, named["flags"], named["no flags"])...)
}

func (r readmeTree) wrongFlags(page string, works, missing []string) (all []string) {
	mentioned := slices.Clone(works)
	for _, match := range flagInText.FindAllStringSubmatch(htmlComment.ReplaceAllString(page, ""), -1) {
		mentioned = append(mentioned, match[1])
	}
	for _, name := range mentioned {
		if !slices.Contains(r.flags, name) {
			all = append(all, "names the flag "+name+", which the agent does not have")
		}
	}
	for _, name := range r.flags {
		if strings.HasPrefix(name, "enable-") && !slices.Contains(works, name) {
			all = append(all, "no entry below "+readmeWorks+" names the flag "+name)
		}
	}
	for _, name := range missing {
		switch {
		case slices.Contains(r.flags, name):
			all = append(all, "an entry below "+readmeMissing+" denies the flag "+name+", which the agent has")
		case !slices.Contains(r.foreign, name):
			all = append(all, "an entry below "+readmeMissing+" names "+name+", which is no option of Cilium")
		}
	}
	return all
}

// entriesOf returns the entries of the list below a heading.
func entriesOf(page, heading string) []string {
	_, rest, _ := strings.Cut(page, "\n## "+heading+"\n")
	body, _, _ := strings.Cut(rest, "\n## ")
	return strings.Split("\n"+body, "\n- ")[1:]
}

var pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestRootPages_LinksExist(t *testing.T) {
	t.Parallel()
	links := 0
	for _, page := range rootPages {
		for _, match := range pageLink.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			if target == "" {
				target = page
			}
			if _, err := os.Stat(filepath.Join(root(t), filepath.FromSlash(target))); err != nil {
				t.Errorf("%s: %s does not exist", page, match[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: %s: the page has no such heading", page, match[1])
			}
		}
	}
	if links < 20 {
		t.Fatalf("only %d links found: the search is broken", links)
	}
}

// anchors returns the anchors of a page's headings.
func anchors(page string) (all []string) {
	for line := range strings.Lines(page) {
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			all = append(all, strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
					return unicode.ToLower(r)
				}
				return -1
			}, strings.TrimSpace(heading)))
		}
	}
	return all
}

// TestLicenses compares the licenses with what the programs declare to the kernel.
func TestLicenses(t *testing.T) {
	t.Parallel()
	const declared = "Dual BSD/GPL"
	if text := read(t, "LICENSE"); !strings.Contains(text, "Apache License") || !strings.Contains(text, "Version 2.0, January 2004") {
		t.Error("LICENSE is not the Apache License 2.0")
	}
	if !strings.Contains(read(t, "bpf/LICENSE"), `"`+declared+`"`) {
		t.Errorf("bpf/LICENSE does not explain %q", declared)
	}
	programs, err := filepath.Glob(filepath.Join(root(t), "bpf", "*.c"))
	if err != nil || len(programs) < 8 {
		t.Fatalf("only %d programs found (%v): the search is broken", len(programs), err)
	}
	for _, program := range programs {
		if name := path.Join("bpf", filepath.Base(program)); !strings.Contains(read(t, name), `SEC("license") = "`+declared+`";`) {
			t.Errorf("%s does not declare the license %q", name, declared)
		}
	}
}
