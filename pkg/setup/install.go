package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// PluginName is the file name of the plugin in the runtimes' directory.
	PluginName = "waggle-cni"
	// TemporaryName is the name of the file while it is written. Runtimes start plugins by name, and no configuration has this name.
	TemporaryName = ".waggle-cni.tmp"
)

// install replaces the plugin unless an equal one is installed. A concurrent call by a runtime executes the old or the new plugin.
func install(from, to string) (installed bool, err error) {
	if same, err := equal(from, to); err != nil || same {
		return false, err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return false, fmt.Errorf("install the CNI plugin: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, fmt.Errorf("install the CNI plugin: %w", err)
	}
	tmp := filepath.Join(filepath.Dir(to), TemporaryName)
	if err := errors.Join(write(tmp, content), os.Rename(tmp, to), syncDir(filepath.Dir(to))); err != nil {
		_ = os.Remove(tmp)
		return false, fmt.Errorf("install the CNI plugin as %s: %w: is --cni-bin-dir a writable mount of the host's directory?", to, err)
	}
	return true, nil
}

// write creates a file and syncs it to disk.
func write(path string, content []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	// The mode above is subject to the umask.
	return errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close())
}

// syncDir makes a rename survive a crash of the machine.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// equal reports whether the plugin is installed: a regular file with the same contents, executable by all users.
func equal(from, to string) (bool, error) {
	want, err := os.ReadFile(from)
	if err != nil {
		return false, fmt.Errorf("read the CNI plugin to install: %w: set its path with --cni-plugin-path", err)
	}
	info, err := os.Lstat(to)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the installed CNI plugin: %w", err)
	}
	if info.IsDir() {
		return false, fmt.Errorf("install the CNI plugin: %s is a directory: remove it", to)
	}
	if info.Mode() != 0o755 || info.Size() != int64(len(want)) {
		return false, nil
	}
	have, err := os.ReadFile(to)
	if err != nil {
		return false, fmt.Errorf("look at the installed CNI plugin: %w", err)
	}
	return bytes.Equal(have, want), nil
}

// loopbackMissing returns a warning if containerd lacks the loopback plugin. containerd sets up the loopback device of each pod with this plugin; since 2.0
// an option makes containerd do so itself.
func loopbackMissing(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "loopback")); err == nil {
		return ""
	}
	return "The plugin loopback is missing in " + dir + ": containerd cannot start pods without it. Install the reference plugins of CNI " +
		"there (Debian: containernetworking-plugins), or set containerd's use_internal_loopback (2.0 or newer); CRI-O needs none"
}
