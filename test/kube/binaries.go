package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// binaries holds the paths of a cluster's programs.
type binaries struct {
	waggle string // bin/ of the project: waggle-agent, waggle-cni, waggle and waggle-image.tar
	kube   string // bin/kube/: Kubernetes' own programs, pause, and images
}

// findBinaries searches the working folder and its parents: go test runs a package's tests in the package's folder.
func findBinaries() (b binaries, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return b, err
	}
	for ; ; dir = filepath.Dir(dir) {
		b = binaries{waggle: filepath.Join(dir, "bin"), kube: filepath.Join(dir, "bin", "kube")}
		if _, err := os.Stat(filepath.Join(b.kube, "kubelet")); err == nil {
			break
		}
		if dir == "/" {
			return b, fmt.Errorf("no folder bin/kube with Kubernetes' programs here or above: run \"make kube-binaries\"")
		}
	}
	for _, name := range []string{"containerd", "ctr", "runc", "ip", "mount", "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			return b, fmt.Errorf("%w: run \"make packages\"", err)
		}
	}
	return b, nil
}
