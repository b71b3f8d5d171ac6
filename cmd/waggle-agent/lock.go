package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waggle-net/waggle/pkg/agentlock"
)

// lockNode prevents a second agent in the network namespace, and one with the same state directory. It changes nothing if there is one. Two agents would share
// links, routes and, with one --bpf-root, maps, from which each would remove the entries of the other one's pods.
func lockNode(stateDir string) (unlock func(), err error) {
	announced, err := agentlock.Announce()
	if held := (*agentlock.HeldError)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("another waggle-agent%s runs in this network namespace: stop it", agentlock.Process(held.PID))
	}
	if err != nil {
		return nil, err
	}
	unlockStateDir, err := lockStateDir(stateDir)
	if err != nil {
		announced.Close()
		return nil, err
	}
	return func() { announced.Close(); unlockStateDir() }, nil
}

// lockStateDir creates the state directory and locks it, so that two agents never share endpoint files and sockets.
func lockStateDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the state directory: %w: run as root, or set another directory with --state-dir", err)
	}
	lock, err := agentlock.Take(filepath.Join(dir, agentlock.AgentFile))
	var held *agentlock.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("another waggle-agent%s uses the state directory %s: stop it", agentlock.Process(held.PID), dir)
	case err != nil:
		return nil, fmt.Errorf("lock the state directory: %w: run as root, or set another directory with --state-dir", err)
	}
	return func() { lock.Close() }, nil
}
