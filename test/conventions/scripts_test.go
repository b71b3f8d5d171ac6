package conventions

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// changesObject matches a script command that changes an object of the API server.
var changesObject = regexp.MustCompile(`^!?\s*api/(put|delete|remove|patch|set)\b`)

// TestScripts_RetriesRepeatNoChange: a retried line (`*`) repeats its section, which begins after the last comment. A section that also changes an object would
// undo in each retry what the cell under test has written to that object, and the test would fail on a busy machine.
func TestScripts_RetriesRepeatNoChange(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, path := range scripts(t) {
		script, _, _ := strings.Cut(read(t, path), "\n-- ")
		changed := ""
		for n, line := range strings.Split(script, "\n") {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "#"):
				changed = ""
			case changesObject.MatchString(line):
				changed = line
				checked++
			case strings.HasPrefix(line, "*") && changed != "":
				t.Errorf("%s:%d: the retry of %q repeats %q; put a comment between them", path, n+1, line, changed)
			}
		}
	}
	if checked == 0 {
		t.Error("no script changes an object: the pattern is out of date")
	}
}

// scripts lists the scripts of cells.
func scripts(t *testing.T) (list []string) {
	t.Helper()
	tree := os.DirFS(root(t))
	err := fs.WalkDir(tree, "cells", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".txtar" {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
