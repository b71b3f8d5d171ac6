package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	fileMode  = 0o644
	backup    = ".waggle_bak" // ends the name of a configuration that --cni-exclusive put aside
	temporary = ".waggle_tmp" // ends the name of the file while it is written; runtimes do not read it
)

// ensure makes the file have the contents, and reports whether it had to write. The file appears whole or not at all.
func ensure(path string, contents []byte) (wrote bool, err error) {
	have, err := readFile(path)
	if err == nil && bytes.Equal(have, contents) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("make the directory of the CNI configuration: %w", err)
	}
	tmp := path + temporary
	if err := os.WriteFile(tmp, contents, fileMode); err != nil {
		return false, fmt.Errorf("write the CNI configuration: %w", err)
	}
	// The mode of WriteFile is subject to the umask and ignored for a file that a killed agent left.
	if err := errors.Join(os.Chmod(tmp, fileMode), os.Rename(tmp, path)); err != nil {
		_ = os.Remove(tmp)
		return false, fmt.Errorf("write the CNI configuration: %w", err)
	}
	return true, nil
}

// putAside renames every other configuration in the directory of path, so that runtimes use none of them.
func putAside(path string) (renamed []string, err error) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the CNI configurations: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if name == filepath.Base(path) || e.IsDir() || !isConf(name) || strings.HasPrefix(name, ".") {
			continue
		}
		from := filepath.Join(dir, name)
		switch err := os.Rename(from, from+backup); {
		case err == nil:
			renamed = append(renamed, name)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("put another CNI configuration aside: %w", err))
		}
	}
	return renamed, errors.Join(errs...)
}
