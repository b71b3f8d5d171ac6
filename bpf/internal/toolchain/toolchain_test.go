package toolchain

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const status = `Package: clang-19
Status: install ok installed
Architecture: amd64
Version: 1:19.1.7-3
Description: compiler
 Version: not this one

Package: libbpf-dev
Status: deinstall ok config-files
Version: 1:1.1.2-0

Package: bash
Status: install ok installed
Version: 5.2

Package: linux-libc-dev
Status: hold ok installed
Version: 6.1.1-1`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse(strings.NewReader(status))
	want := Versions{"clang-19": "1:19.1.7-3", "linux-libc-dev": "6.1.1-1"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if missing := got.Missing(); !slices.Equal(missing, []string{"libbpf-dev", "llvm-19"}) {
		t.Errorf("missing %v", missing)
	}
}

func TestWrite_ReadBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), File)
	want := Versions{"clang-19": "1", "llvm-19": "2"}
	if err := Write(path, want); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || !got.Equal(want) {
		t.Errorf("got %v, %v", got, err)
	}
}
