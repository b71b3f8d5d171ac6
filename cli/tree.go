package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/printable"
)

// branch is a module of the agent with its submodules.
type branch struct {
	below  map[string]*branch
	report *models.ModuleHealth // nil if only submodules have reported
}

// modulesTree prints the health reports of the agent's modules as an indented tree: the unhealthy ones, or all.
func modulesTree(w io.Writer, modules []models.ModuleHealth, all bool) {
	root := &branch{}
	for i, m := range modules {
		if all || m.Level != models.ModuleHealthLevelOK {
			root.add(strings.Split(m.ID, "."), &modules[i])
		}
	}
	if len(root.below) > 0 {
		fmt.Fprintln(w)
		root.print(w, "")
	}
}

func (b *branch) add(path []string, report *models.ModuleHealth) {
	if len(path) == 0 {
		b.report = report
		return
	}
	if b.below == nil {
		b.below = map[string]*branch{}
	}
	child := b.below[path[0]]
	if child == nil {
		child = &branch{}
		b.below[path[0]] = child
	}
	child.add(path[1:], report)
}

func (b *branch) print(w io.Writer, indent string) {
	names := slices.Sorted(maps.Keys(b.below))
	for i, name := range names {
		corner, bar := "├── ", "│   "
		if i == len(names)-1 {
			corner, bar = "└── ", "    "
		}
		child := b.below[name]
		fmt.Fprintln(w, indent+corner+printable.Text(name)+child.words())
		child.print(w, indent+bar)
	}
}

func (b *branch) words() string {
	if b.report == nil {
		return ""
	}
	words := "  [" + string(b.report.Level) + "]"
	if b.report.Message != "" {
		words += " " + b.report.Message
	}
	if b.report.Error != "" {
		words += ": " + b.report.Error
	}
	return printable.Text(words)
}
