package cniconf

import (
	"encoding/json"
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
	backup    = cniconfig.BackupSuffix
	temporary = cniconfig.TemporarySuffix
)

// write writes the file and creates its directory. The write is atomic.
func write(path string, contents []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create the directory of the CNI configuration: %w", err)
	}
	if err := replace(path, contents); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	return nil
}

// replace writes a file atomically, also for programs that watch the directory. containerd reads all configurations again when a file in the
// directory is written to, renamed or removed, but not when a file is created or moved into the directory, and keeps the result of its last reading.
// So replace writes the file in a subdirectory, moves it into the directory under a temporary name, and renames it there: this rename is the first
// event that containerd handles, and the file is complete by then.
func replace(path string, contents []byte) (err error) {
	workshop, appears := filepath.Join(filepath.Dir(path), temporary), path+temporary
	if err := os.RemoveAll(workshop); err != nil { // a killed agent may have left it
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
	if err := create(written, contents); err != nil {
		return err
	}
	if err := os.Rename(written, appears); err != nil {
		return err
	}
	return os.Rename(appears, path)
}

// create creates a file and syncs it to disk, because a crash of the machine must not lose plugins of other programs.
func create(path string, contents []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(contents)
	return errors.Join(err, file.Chmod(fileMode), file.Sync(), file.Close()) // the umask may have changed the mode
}

// listPreceding returns the configurations whose names sort before the file. Runtimes use the first configuration, or none if they cannot read that one,
// and do not call the agent's plugin then. Configurations of multus are delegating: multus calls the agent's plugin.
func listPreceding(path string) (names, delegating []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path)) // same order as in runtimes
	if err != nil {
		return nil, nil, fmt.Errorf("list the CNI configurations: %w", err)
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name >= filepath.Base(path) || e.IsDir() || !isConf(name):
		case isMultus(filepath.Join(filepath.Dir(path), name)):
			delegating = append(delegating, name)
		default:
			names = append(names, name)
		}
	}
	return names, delegating, nil
}

// isMultus reports whether a file is a configuration of multus, or a list that starts with multus.
func isMultus(path string) bool {
	data, err := readFile(path)
	if err != nil {
		return false
	}
	kind := typeOf(data)
	var l presentList
	if json.Unmarshal(data, &l) == nil && len(l.Plugins) > 0 {
		kind = typeOf(l.Plugins[0])
	}
	return kind == "multus" || kind == "multus-shim"
}

// renameOthers renames other configurations in the directory of path, so that runtimes do not use them. Configurations of multus stay.
func renameOthers(path string) (renamed []string, err error) {
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
		if isMultus(from) {
			continue
		}
		switch err := os.Rename(from, from+backup); {
		case err == nil:
			renamed = append(renamed, name)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("rename another CNI configuration: %w", err))
		}
	}
	return renamed, errors.Join(errs...)
}
