package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// entry is one path found by [tree].
type entry struct {
	path string
	dir  bool
	note string // kind of file; empty for a regular one
}

// object returns the entry as an object of Waggle. A directory is removed only when it is empty.
func (e entry) object(owner, proof string) Object {
	return Object{Name: e.path, Owner: owner, Proof: proof, Note: e.note, remove: func() error { return remove(e.path) }}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// tree returns a path and all paths below it, contents before their directory. It does not follow symbolic links. The result is empty if the path does
// not exist.
func tree(path string) (entries []entry, err error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := entry{path: path, dir: info.IsDir(), note: noteOf(info.Mode().Type())}
	if !e.dir {
		return []entry{e}, nil
	}
	names, err := os.ReadDir(path)
	errs := []error{err}
	for _, name := range names {
		below, err := tree(filepath.Join(path, name.Name()))
		entries, errs = append(entries, below...), append(errs, err)
	}
	return append(entries, e), errors.Join(errs...)
}

func noteOf(t fs.FileMode) string {
	switch t {
	case 0:
		return ""
	case fs.ModeDir:
		return "directory"
	case fs.ModeSocket:
		return "socket"
	case fs.ModeSymlink:
		return "symbolic link"
	}
	return fmt.Sprint(t)
}
