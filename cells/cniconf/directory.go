package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
)

const (
	fileMode  = 0o644
	backup    = cniconfig.AsideSuffix
	temporary = cniconfig.TemporarySuffix
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
	if err := replace(path, contents); err != nil {
		return false, fmt.Errorf("write the CNI configuration: %w", err)
	}
	return true, nil
}

// replace makes a file appear whole, also to those who watch the directory. containerd reads all configurations again when
// a file of it is written to, renamed or removed, not when one appears, and keeps what came of the last time. So the file
// is written in a directory of its own, appears, and is renamed: that is the first event that counts, and all is there.
func replace(path string, contents []byte) (err error) {
	workshop, appears := filepath.Join(filepath.Dir(path), temporary), path+temporary
	if err := os.RemoveAll(workshop); err != nil { // what a killed agent left
		return err
	}
	if err := os.Mkdir(workshop, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(appears)
		}
		err = errors.Join(err, os.RemoveAll(workshop))
	}()
	written := filepath.Join(workshop, filepath.Base(path))
	if err := os.WriteFile(written, contents, fileMode); err != nil {
		return err
	}
	if err := os.Chmod(written, fileMode); err != nil { // the mode above is subject to the umask
		return err
	}
	if err := os.Rename(written, appears); err != nil {
		return err
	}
	return os.Rename(appears, path)
}

// comesFirst lists the configurations that come before the file by name. Runtimes use the first one, or none at all when they
// cannot read it, and ask us for nothing.
func comesFirst(path string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path)) // sorted as runtimes sort
	if err != nil {
		return nil, fmt.Errorf("list the CNI configurations: %w", err)
	}
	for _, e := range entries {
		if e.Name() < filepath.Base(path) && !e.IsDir() && isConf(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
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
