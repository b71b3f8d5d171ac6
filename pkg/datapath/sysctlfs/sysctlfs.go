// Package sysctlfs reads and writes kernel settings in procfs, by names such as "net/ipv4/ip_forward".
package sysctlfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FS is <procfs>/sys. It opens files through a root, so that no symbolic link and no name leads out of it. The error for a setting that does not exist wraps
// [fs.ErrNotExist].
type FS struct{ dir string }

// Below returns the settings of a procfs, usually "/proc".
func Below(procfs string) FS { return FS{filepath.Join(procfs, "sys")} }

// Read returns a value as the kernel prints it, without the end of the line.
func (f FS) Read(name string) (string, error) {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	b, err := root.ReadFile(name)
	return strings.TrimSpace(string(b)), err
}

// Write sets a value. The kernel may clamp it without an error.
func (f FS) Write(name, value string) error {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value + "\n")
	return errors.Join(err, file.Close())
}

// List returns the names in a directory.
func (f FS) List(dir string) (names []string, err error) {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
