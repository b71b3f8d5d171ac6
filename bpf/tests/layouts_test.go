package tests

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/waggle-net/waggle/bpf"
)

// shape formats all properties of a map in which programs of two versions must agree.
func shape(m *ebpf.MapSpec) string {
	return fmt.Sprintf("%s flags %d key %d %s value %d %s", m.Type, m.Flags, m.KeySize, typeShape(m.Key), m.ValueSize, typeShape(m.Value))
}

func typeShape(t btf.Type) string {
	switch t := t.(type) {
	case nil:
		return "-"
	case *btf.Struct:
		var out []string
		for _, m := range t.Members {
			out = append(out, fmt.Sprintf("%s@%d %s", m.Name, m.Offset, typeShape(m.Type)))
		}
		return "{" + strings.Join(out, " ") + "}"
	case *btf.Array:
		return fmt.Sprintf("[%d]%s", t.Nelems, typeShape(t.Type))
	case *btf.Typedef:
		return typeShape(t.Type)
	}
	size, err := btf.Sizeof(t)
	return fmt.Sprint(size, err)
}

// The layout of each map matches the record of its version. A change of a map must increment the version; otherwise programs of two versions would interpret
// the same pin differently.
func TestLayoutVersion_IncrementsWithLayout(t *testing.T) {
	t.Parallel()
	const record = "testdata/layouts.txt"
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(strings.TrimSpace(string(text)), "\n")
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		sum := sha256.Sum256([]byte(shape(specs[name])))
		line := fmt.Sprintf("%s %x", bpf.PinName(name, bpf.LayoutVersion(name)), sum[:8])
		if !slices.Contains(known, line) {
			t.Errorf("%s is not in %s: raise the version of %s in layouts.go, describe the previous layout in PreviousLayoutOf, and "+
				"add the line (its shape is %s)", line, record, name, shape(specs[name]))
		}
	}
	seen := map[string]bool{}
	for _, line := range known {
		pin, _, _ := strings.Cut(line, " ")
		if seen[pin] {
			t.Errorf("%s: %s stands there twice; a version never changes", record, pin)
		}
		seen[pin] = true
	}
}
