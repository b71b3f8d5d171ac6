package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each fault must apply to the tree: its text occurs exactly once in the file.
func TestFaults_ApplyToTheTree(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, f := range faults {
		if names[f.name] || f.about == "" || f.tests == "" || len(f.packages) == 0 || len(f.changes) == 0 {
			t.Errorf("%s: listed twice, or without a description, packages, tests or changes", f.name)
		}
		names[f.name] = true
		if (f.tier == "kernels") != (f.kernel != "") {
			t.Errorf("%s: tier %s and kernel %q do not go together", f.name, f.tier, f.kernel)
		}
		for _, c := range f.changes {
			text, err := os.ReadFile(filepath.Join("../..", c.file))
			if err != nil {
				t.Errorf("%s: %v", f.name, err)
				continue
			}
			if n := strings.Count(string(text), c.old); n != 1 || c.old == c.new {
				t.Errorf("%s: %s has %d times %q, want once, and another text in its place", f.name, c.file, n, c.old)
			}
		}
	}
}

func TestFailed_NamesTopLevelTests(t *testing.T) {
	t.Parallel()
	out := `{"Action":"fail","Test":"TestA/sub"}
{"Action":"fail","Test":"TestA"}
{"Action":"pass","Test":"TestB"}
not json
--- FAIL: TestC (1.2s)
    --- FAIL: TestC/sub (1.2s)
{"Action":"fail"}
`
	if got := strings.Join(failed([]byte(out)), " "); got != "TestA TestC" {
		t.Errorf("failed tests: %q, want TestA and TestC", got)
	}
}
