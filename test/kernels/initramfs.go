package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// fileSystem is the content of a machine's memory file system: files by their path in the machine, without the leading slash.
type fileSystem struct {
	files   map[string]string // path outside
	texts   map[string][]byte // content of files that exist only inside
	folders []string          // folders that may be empty
}

// write packs the files into the archive from which the kernel creates its initial file system.
func (f fileSystem) write(to string) (err error) {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	archive := cpio.NewWriter(file)
	for _, folder := range f.allFolders() {
		if err := archive.WriteHeader(&cpio.Header{Name: folder, Mode: cpio.TypeDir | 0o755}); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if err := addFile(archive, name, f.files[name]); err != nil {
			return fmt.Errorf("pack %s: %w", f.files[name], err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.texts)) {
		if err := archive.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeReg | 0o644, Size: int64(len(f.texts[name]))}); err != nil {
			return err
		}
		if _, err := archive.Write(f.texts[name]); err != nil {
			return err
		}
	}
	return archive.Close()
}

// allFolders lists the folders of all files, each after its parent.
func (f fileSystem) allFolders() []string {
	all := map[string]bool{}
	add := func(folder string) {
		for ; folder != "."; folder = path.Dir(folder) {
			all[folder] = true
		}
	}
	for _, folder := range f.folders {
		add(folder)
	}
	for name := range f.files {
		add(path.Dir(name))
	}
	for name := range f.texts {
		add(path.Dir(name))
	}
	return slices.SortedFunc(maps.Keys(all), strings.Compare)
}

func addFile(archive *cpio.Writer, name, from string) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	mode := cpio.TypeReg | cpio.FileMode(info.Mode().Perm())
	if err := archive.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
