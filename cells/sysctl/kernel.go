package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/waggle-net/waggle/pkg/settings"
)

// kernel is where settings are. A setting that does not exist is [fs.ErrNotExist].
type kernel interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// procfs is the real [kernel]: files below <procfs>/sys. It opens them through a root, so that no symbolic link and no
// name leads out of it.
type procfs struct{ dir string }

func newProcfs(agent settings.Agent) kernel { return procfs{filepath.Join(agent.Procfs, "sys")} }

func (p procfs) Read(name string) (string, error) {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	b, err := root.ReadFile(name)
	return strings.TrimSpace(string(b)), err
}

func (p procfs) Write(name, value string) error {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}

// missing tells whether err means that the kernel has no such setting, or that its device is gone.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
