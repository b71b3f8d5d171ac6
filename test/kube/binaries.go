package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// binaries says where the programs are that a cluster consists of.
type binaries struct {
	waggle string // bin/ of the project: waggle-agent, waggle-cni, waggle and waggle-image.tar
	kube   string // bin/kube/: Kubernetes' own programs, pause, and images
}

// findBinaries looks from the working folder upwards: the tests of a package run in its folder.
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
	for _, name := range []string{"etcd", "containerd", "ctr", "runc", "ip", "mount", "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			return b, fmt.Errorf("%w: run \"make packages\"", err)
		}
	}
	return b, nil
}
