package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cavaliergopher/cpio"
)

// Places in a machine's file system.
const (
	suitesFile = "/suites.json"
	moduleDir  = "/modules"
	programs   = "/programs" // the agent, the plugin and the command
)

func writeSuites(root string, suites []suite) error {
	text, err := json.Marshal(suites)
	if err != nil {
		return err
	}
	return os.WriteFile(root+suitesFile, text, 0o644)
}

// writeInitramfs packs the files under root and a kernel's modules into the archive from which the kernel makes its first
// file system. Modules are numbered in the order in which they can be loaded.
func writeInitramfs(path, root string, k *kernel) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	archive := cpio.NewWriter(file)
	if err := addTree(archive, root); err != nil {
		return fmt.Errorf("pack %s: %w", root, err)
	}
	if err := archive.WriteHeader(&cpio.Header{Name: moduleDir[1:], Mode: cpio.TypeDir | 0o755}); err != nil {
		return err
	}
	for i, m := range k.modules {
		if err := addFile(archive, fmt.Sprintf("%s/%02d-%s", moduleDir[1:], i, filepath.Base(m)), m); err != nil {
			return fmt.Errorf("pack %s: %w", m, err)
		}
	}
	return archive.Close()
}

func addTree(archive *cpio.Writer, root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return archive.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeDir | 0o755})
		}
		return addFile(archive, name, path)
	})
}

func addFile(archive *cpio.Writer, name, path string) error {
	file, err := os.Open(path)
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
