package tests

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/bpf/internal/toolchain"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// The committed objects match the sources, independent of the build directory. The test copies the sources to another directory and builds them there with
// the commands of gen.go. With the recorded toolchain the results are identical; with another one, instructions, maps and types are.
func TestObjects_AreBuiltFromTheSources(t *testing.T) {
	t.Parallel()
	installed, err := toolchain.Installed()
	if err != nil {
		t.Fatal(err)
	}
	if missing := installed.Missing(); len(missing) > 0 {
		testnet.Missing(t, "needs the toolchain: apt-get install %s", strings.Join(missing, " "))
	}
	recorded, err := toolchain.Read(filepath.Join("..", toolchain.File))
	if err != nil {
		t.Fatal(err)
	}
	dir := rebuild(t)
	for _, object := range bpf.Objects() {
		compareObjects(t, object, filepath.Join(dir, object+"_bpfel.o"))
		if !recorded.Equal(installed) {
			t.Logf("%s: built with %v, here is %v: bytes are not compared", object, recorded, installed)
			continue
		}
		for _, name := range []string{object + "_bpfel.o", object + "_bpfel.go"} {
			if got, want := readFile(t, filepath.Join(dir, name)), readFile(t, filepath.Join("..", name)); !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes differ from the %d that are committed; run go generate ./bpf", name, len(got), len(want))
			}
		}
	}
}

// rebuild runs the commands of gen.go on a copy of the sources and returns its directory.
func rebuild(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lib"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.c", "lib/*.h"} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("find %s: %d files, %v", pattern, len(files), err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, strings.TrimPrefix(f, "../")), readFile(t, f), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	bpf2go := filepath.Join(dir, "bpf2go")
	run(t, ".", "go", "build", "-o", bpf2go, "github.com/cilium/ebpf/cmd/bpf2go")
	for _, args := range buildCommands(t) {
		run(t, dir, bpf2go, args...)
	}
	return dir
}

// buildCommands reads the arguments of bpf2go from gen.go, one list for each object.
func buildCommands(t *testing.T) (commands [][]string) {
	t.Helper()
	var shared []string
	for line := range strings.Lines(string(readFile(t, "../gen.go"))) {
		if rest, ok := strings.CutPrefix(line, "//go:generate -command build go tool bpf2go "); ok {
			shared = words(t, rest)
		}
		if rest, ok := strings.CutPrefix(line, "//go:generate build "); ok {
			commands = append(commands, append(slices.Clone(shared), words(t, rest)...))
		}
	}
	if len(shared) == 0 || len(commands) != len(bpf.Objects()) {
		t.Fatalf("gen.go builds %d objects with %v, want %d", len(commands), shared, len(bpf.Objects()))
	}
	return commands
}

// words splits a line as go generate does: at spaces, except inside double quotes.
func words(t *testing.T, line string) (out []string) {
	t.Helper()
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimLeft(line, " ") {
		if line[0] != '"' {
			var word string
			word, line, _ = strings.Cut(line, " ")
			out = append(out, word)
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			t.Fatal(err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatal(err)
		}
		out, line = append(out, word), line[len(quoted):]
	}
	return out
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compareObjects compares the input of the kernel: instructions, maps, constants, and the shared layouts.
func compareObjects(t *testing.T, program, path string) {
	t.Helper()
	committed, err := bpf.Load(program)
	if err != nil {
		t.Fatal(err)
	}
	rebuilt, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(describe(committed), describe(rebuilt)); diff != "" {
		t.Errorf("%s (-committed +rebuilt): run go generate ./bpf\n%s", program, diff)
	}
}

// describe formats an object without positions in its sources.
func describe(spec *ebpf.CollectionSpec) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		lines = append(lines, fmt.Sprintf("map %s: %s, key %d %v, value %d %v, %d entries, flags %d",
			name, m.Type, m.KeySize, m.Key, m.ValueSize, m.Value, m.MaxEntries, m.Flags))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Variables)) {
		v := spec.Variables[name]
		lines = append(lines, fmt.Sprintf("variable %s: %d bytes at %d", name, v.Size(), v.Offset))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		for i, ins := range spec.Programs[name].Instructions {
			lines = append(lines, fmt.Sprint(name, " ", i, ": ", ins.Symbol(), " ", ins.OpCode, ins.Dst, ins.Src, ins.Offset,
				ins.Constant, ins.Reference()))
		}
	}
	return lines
}

// Each header includes the headers that it uses.
func TestHeaders_CompileAlone(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("clang-19"); err != nil {
		testnet.Missing(t, "needs the compiler: apt-get install clang-19 libbpf-dev linux-libc-dev")
	}
	headers, err := filepath.Glob("../lib/*.h")
	if err != nil {
		t.Fatal(err)
	}
	args := buildCommands(t)[0]
	flags := args[slices.Index(args, "-cflags")+1]
	for _, header := range headers {
		source := filepath.Join(t.TempDir(), "alone.c")
		if err := os.WriteFile(source, fmt.Appendf(nil, "#include %q\n", header), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, ".", "clang-19", append(strings.Fields(flags), "-Wno-unused-function", "-target", "bpfel", "-fsyntax-only",
			"-I.", source)...)
	}
}
