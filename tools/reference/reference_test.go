package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestPagesAreUpToDate compares the committed pages with the agent.
func TestPagesAreUpToDate(t *testing.T) {
	if err := run(root, false); err != nil {
		t.Error(err)
	}
}

// TestTables_HaveAWriter: a table that no cell makes is a mistake of the search, or of the tree.
func TestTables_HaveAWriter(t *testing.T) {
	pages, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(pages["Documentation/tables.md"]) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		if cells := strings.Split(line, "|"); strings.TrimSpace(cells[3]) == "" {
			t.Errorf("no writer: %s", line)
		}
	}
	if rows < 20 {
		t.Errorf("only %d tables", rows)
	}
	if !strings.Contains(pages["Documentation/tables.md"], "| `health` | node, cluster | healthreport |") {
		t.Error("the table health is not attributed to its cell")
	}
}

// TestRun_ReportsOutdatedPages changes a copy of the pages.
func TestRun_ReportsOutdatedPages(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"Documentation", "pkg/install"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cells", "pkg/tables"} {
		if err := os.Symlink(mustAbs(t, filepath.Join(root, name)), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(dir, true); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, false); err != nil {
		t.Errorf("just written: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Documentation", "flags.md"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, false); err == nil || !strings.Contains(err.Error(), "flags.md is out of date: run make docs") {
		t.Errorf("changed page: %v", err)
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
