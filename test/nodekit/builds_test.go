package nodekit

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKeptObjects_NoneWithRunAll(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pod_bpfel.o"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for all, want := range map[string]int{"": 1, "1": 0} {
		t.Setenv("WAGGLE_ALL", all)
		if found, err := cachedObjects(dir); err != nil || len(found) != want {
			t.Errorf("WAGGLE_ALL=%q: found %q, %v, want %d", all, found, err, want)
		}
	}
}
