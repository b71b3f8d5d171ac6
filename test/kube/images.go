package kube

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Images that are loaded on every node.
const (
	PauseImage  = "waggle.local/pause:1"  // the sandbox of pods
	ClientImage = "waggle.local/client:1" // busybox
)

// LoadImage imports an image archive of this machine into the node's containerd.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := run(ctx, n.netNS, file, "ctr", "--namespace", "k8s.io", "images", "import", "-"); err != nil {
		return fmt.Errorf("load image on %s: %w", n.Name, err)
	}
	return nil
}

// archives returns the image archives that a new node loads.
func (c *Cluster) archives() []string {
	if c.host != nil {
		return c.host.archives()
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	return slices.Clone(c.images)
}

// addImage loads an image on all existing and future nodes.
func (c *Cluster) addImage(ctx context.Context, archive string) error {
	for _, n := range c.Nodes {
		if err := n.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if !slices.Contains(c.images, archive) {
		c.images = append(c.images, archive)
	}
	return nil
}

// imageName returns the first name of the image in an archive.
func imageName(archive string) (string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("no manifest in image archive %s: %w", archive, err)
		}
		if header.Name != "manifest.json" {
			continue
		}
		var manifest []struct{ RepoTags []string }
		if err := json.NewDecoder(r).Decode(&manifest); err != nil || len(manifest) != 1 || len(manifest[0].RepoTags) == 0 {
			return "", fmt.Errorf("manifest of image archive %s: %+v, %w", archive, manifest, err)
		}
		return manifest[0].RepoTags[0], nil
	}
}

// Build configures an image of Waggle that differs from the one of "make image".
type Build struct {
	Generation int    // of the agent's datapath
	Tags       string // build tags
}

// BuildImage builds an image with another agent, loads it on all nodes and returns its name. It needs the sources and a compiler.
func (c *Cluster) BuildImage(ctx context.Context, build Build) (name string, err error) {
	name = fmt.Sprintf("waggle.local/waggle:generation-%d", build.Generation)
	agent, archive := c.path("waggle-agent"), c.path("waggle-image.tar")
	files := []string{agent + "=/usr/bin/waggle-agent"}
	for _, program := range []string{"waggle-cni", "waggle"} {
		files = append(files, filepath.Join(c.bin.waggle, program)+"=/usr/bin/"+program)
	}
	for _, args := range [][]string{
		{"build", "-trimpath", "-buildvcs=false", "-tags=" + build.Tags, "-o", agent,
			fmt.Sprintf("-ldflags=-s -w -X github.com/waggle-net/waggle/pkg/version.generation=%d", build.Generation), "./cmd/waggle-agent"},
		append([]string{"run", "./tools/image", "-o", archive, "-name", name, "-entrypoint", "/usr/bin/waggle-agent"}, files...),
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = filepath.Dir(c.bin.waggle), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("make image %s: %w\n%s", name, err, out)
		}
	}
	for _, n := range c.Nodes {
		if err := n.LoadImage(ctx, archive); err != nil {
			return "", err
		}
	}
	return name, nil
}
