package kube

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// Images that every node has.
const (
	PauseImage  = "waggle.local/pause:1"  // the sandbox of pods
	ClientImage = "waggle.local/client:1" // busybox
)

// LoadImage imports an image archive of this machine into the node's containerd.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	if _, err := n.Run(ctx, "ctr", "--namespace", "k8s.io", "images", "import", archive); err != nil {
		return fmt.Errorf("load image on %s: %w", n.Name, err)
	}
	return nil
}

// imageName reads the first name of the image in an archive.
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
