package sysctl

import (
	"errors"
	"io/fs"

	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/sysctlfs"
	"github.com/waggle-net/waggle/pkg/sysctlrecord"
)

// kernel is where settings are. A setting that does not exist is [fs.ErrNotExist].
type kernel interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// recorded is the real [kernel]. What a setting was is on the disk before it is changed.
type recorded struct {
	sysctlfs.FS
	record *sysctlrecord.Record
}

func newProcfs(agent settings.Agent) kernel {
	return recorded{sysctlfs.Below(agent.Procfs), sysctlrecord.New(agent.StateDir)}
}

func (r recorded) Write(name, value string) error {
	if err := r.record.Keep(r.FS, name, value); err != nil {
		return err
	}
	return r.FS.Write(name, value)
}

// missing tells whether err means that the kernel has no such setting, or that its device is gone.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
