// Package toolchain knows which Debian packages decide what the compiled programs look like.
package toolchain

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// File is where the versions of the last build stand, next to the objects.
const File = "toolchain.json"

const statusPath = "/var/lib/dpkg/status"

// Packages lists the packages that the build of the programs needs: compiler, strip, and headers.
func Packages() []string { return []string{"clang-19", "libbpf-dev", "linux-libc-dev", "llvm-19"} }

// Versions maps a package to its version.
type Versions map[string]string

// Missing lists the packages that v lacks, sorted.
func (v Versions) Missing() []string {
	return slices.DeleteFunc(Packages(), func(p string) bool { return v[p] != "" })
}

// Equal reports whether both have the same packages in the same versions.
func (v Versions) Equal(o Versions) bool { return maps.Equal(v, o) }

// Installed reads from dpkg's database which of [Packages] are installed. On a system without dpkg there are none.
func Installed() (Versions, error) {
	f, err := os.Open(statusPath)
	if os.IsNotExist(err) {
		return Versions{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read installed packages: %w", err)
	}
	defer f.Close()
	return parse(f)
}

// parse reads dpkg's status: paragraphs of fields, separated by empty lines.
func parse(r io.Reader) (Versions, error) {
	found := Versions{}
	var name, status, version string
	flush := func() {
		if strings.HasSuffix(status, " installed") && slices.Contains(Packages(), name) {
			found[name] = version
		}
		name, status, version = "", "", ""
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "":
			flush()
		case "Package":
			name = value
		case "Status":
			status = value
		case "Version":
			version = value
		}
	}
	flush()
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read installed packages: %w", err)
	}
	return found, nil
}

// Read reads recorded versions.
func Read(path string) (Versions, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read recorded versions: %w", err)
	}
	var v Versions
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("read recorded versions from %s: %w", path, err)
	}
	return v, nil
}

// Write records versions.
func Write(path string, v Versions) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("record versions: %w", err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
