package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// The plugin rotates its log, so there are two files.
func TestFiles_LogOfThePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	logs, state := filepath.Join(dir, "log"), filepath.Join(dir, "state")
	m := &Machine{paths: Paths{Agent: agentconfig.Agent{StateDir: state}, LibDir: filepath.Join(dir, "lib"), CNILog: filepath.Join(logs, "cni.log")}}
	if err := errors.Join(os.Mkdir(logs, 0o700), os.WriteFile(m.paths.CNILog, nil, 0o600), os.WriteFile(m.paths.CNILog+".1", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	found, err := m.files()
	for _, o := range found {
		err = errors.Join(err, o.remove())
	}
	if left, errLeft := os.ReadDir(logs); len(found) != 2 || len(left) != 0 || errors.Join(err, errLeft) != nil {
		t.Errorf("removed %v, left %v: %v", found, left, errors.Join(err, errLeft))
	}
	m.paths.CNILog = ""
	if found, err := m.files(); len(found) != 0 || err != nil {
		t.Errorf("without a log: %v, %v", found, err)
	}
}
