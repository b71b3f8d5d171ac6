package sysctl

import (
	"errors"
	"io/fs"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/sysctlfs"
	"github.com/waggle-net/waggle/pkg/sysctlrecord"
)

// kernel reads and writes settings. The error for a missing setting is [fs.ErrNotExist].
type kernel interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// recorded is the real [kernel]. It records the original value of a setting on disk before the first write.
type recorded struct {
	sysctlfs.FS
	record *sysctlrecord.Record
}

func newProcfs(agent agentconfig.Agent) kernel {
	return recorded{sysctlfs.Below(agent.Procfs), sysctlrecord.New(agent.StateDir)}
}

func (r recorded) Write(name, value string) error {
	if err := r.record.Keep(r.FS, name, value); err != nil {
		return err
	}
	return r.FS.Write(name, value)
}

// missing reports whether err means that the setting or its device does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
