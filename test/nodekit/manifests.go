package nodekit

import (
	"os"
	"path/filepath"
)

// WriteManifest replaces a file of manifests atomically.
func (n *Node) WriteManifest(name, text string) error {
	hidden := filepath.Join(n.ManifestsDir(), "."+name)
	if err := os.WriteFile(hidden, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(n.ManifestsDir(), name))
}
