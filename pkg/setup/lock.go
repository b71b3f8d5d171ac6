package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waggle-net/waggle/pkg/agentlock"
)

// lock excludes a second setup process of one agent. The kernel releases the lock with the process.
func lock(stateDir string) (unlock func(), err error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("create the state directory: %w: run as root, with the agent's --state-dir", err)
	}
	f, err := agentlock.Take(filepath.Join(stateDir, agentlock.SetupFile))
	var held *agentlock.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("lock %s: another \"waggle-agent setup\"%s runs for this state directory: stop it first",
			held.Path, agentlock.Process(held.PID))
	case err != nil:
		return nil, fmt.Errorf("lock the setup: %w: run as root, with the agent's --state-dir", err)
	}
	return func() { f.Close() }, nil
}
