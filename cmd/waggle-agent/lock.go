package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waggle-net/waggle/pkg/agentlock"
)

// lockStateDir creates the state directory and locks it, so that two agents never share endpoint files and sockets. Until the call of unlock, the agent is
// also announced in its network namespace.
func lockStateDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the state directory: %w: run as root, or set another directory with --state-dir", err)
	}
	lock, err := agentlock.Take(filepath.Join(dir, agentlock.AgentFile))
	var held *agentlock.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("another waggle-agent%s uses the state directory %s: stop it, or set another --state-dir",
			agentlock.Process(held.PID), dir)
	case err != nil:
		return nil, fmt.Errorf("lock the state directory: %w: run as root, or set another directory with --state-dir", err)
	}
	announced := agentlock.Announce()
	return func() { announced.Close(); lock.Close() }, nil
}
