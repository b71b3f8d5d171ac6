package nodekit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Build says how an agent differs from the one that is released.
type Build struct {
	// Generation of its datapath; 0 is that of the sources.
	Generation int
	// Replace puts other files in place of sources and embedded objects: by absolute path, the path of the other file.
	Replace map[string]string
}

// Builds makes agents of other versions, each once.
type Builds struct {
	dir string

	mu   sync.Mutex        // guards made, and is held while one is built: two at once would only compete
	made map[string]string // path by what was asked for
}

// NewBuilds keeps what it builds in dir.
func NewBuilds(dir string) *Builds { return &Builds{dir: dir, made: make(map[string]string)} }

// Agent returns the path of an agent that is built so.
func (b *Builds) Agent(build Build) (string, error) {
	key, err := json.Marshal(build)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if path, found := b.made[string(key)]; found {
		return path, nil
	}
	path := filepath.Join(b.dir, fmt.Sprintf("waggle-agent-%d", len(b.made)+1))
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", path}
	if build.Generation != 0 {
		args = append(args, fmt.Sprintf("-ldflags=-X github.com/waggle-net/waggle/pkg/version.generation=%d", build.Generation))
	}
	if len(build.Replace) > 0 {
		overlay, err := json.Marshal(map[string]any{"Replace": build.Replace})
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(path+".overlay", overlay, 0o600); err != nil {
			return "", err
		}
		args = append(args, "-overlay="+path+".overlay")
	}
	cmd := exec.Command("go", append(args, "github.com/waggle-net/waggle/cmd/waggle-agent")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build agent %s: %w\n%s", key, err, out)
	}
	b.made[string(key)] = path
	return path, nil
}

// UseAgent makes a program the node's agent from its next start on; "" is the one in BinDir.
func (n *Node) UseAgent(path string) { n.agentPath = path }

// UpgradeAgent stops the agent as a DaemonSet's update does, starts another build in its place and waits until that is ready.
func (n *Node) UpgradeAgent(ctx context.Context, path string) error {
	n.UseAgent(path)
	if err := errors.Join(n.StopAgent(ctx), n.StartAgent()); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}
