package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// Pod describes the group of a Kubernetes pod.
type Pod struct {
	UID        string // as in the name that the kubelet gives to the group
	Containers []Container
}

// Container is a group below the group of its pod.
type Container struct {
	ID   uint64 // cgroup id, as programs see it
	Path string // below the root
}

// podGroup is the name that the kubelet gives to the group of a pod: pod<UID> with its driver cgroupfs, and with systemd kubepods-<class>-pod<UID>.slice, where
// dashes of the UID are underscores.
var podGroup = regexp.MustCompile(`^(?:[a-z-]*-)?pod([0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12})(?:\.slice)?$`)

// podDepth is the maximum number of groups between the root and the group of a pod: kubelet.slice, kubepods.slice and kubepods-burstable.slice, as in kind.
const podDepth = 3

// Pods returns the groups of pods and their containers below a group, sorted by path. Groups that are removed meanwhile are missing.
func Pods(root string) (found []Pod, err error) {
	tree := os.DirFS(root)
	err = fs.WalkDir(tree, ".", func(at string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != ".":
			return fs.SkipDir
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		}
		if match := podGroup.FindStringSubmatch(entry.Name()); match != nil {
			pod := Pod{UID: strings.ReplaceAll(match[1], "_", "-")}
			if pod.Containers, err = containers(tree, at); err != nil {
				return err
			}
			found = append(found, pod)
			return fs.SkipDir
		}
		if at != "." && (!mayHavePods(entry.Name()) || strings.Count(at, "/") >= podDepth) {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the control groups of pods below %s: %w", root, err)
	}
	return found, nil
}

// mayHavePods reports whether the kubelet creates groups of pods below a group with this name. There may be thousands of other groups.
func mayHavePods(name string) bool {
	return strings.Contains(name, "kube") || slices.Contains(classes, name)
}

// classes are the groups of the QoS classes of pods, with the driver cgroupfs.
var classes = []string{"burstable", "besteffort"}

func containers(tree fs.FS, pod string) (list []Container, err error) {
	entries, err := fs.ReadDir(tree, pod)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		info, gone := entry.Info()
		if gone != nil {
			continue
		}
		if stat, is := info.Sys().(*syscall.Stat_t); is {
			list = append(list, Container{ID: stat.Ino, Path: path.Join(pod, entry.Name())})
		}
	}
	return list, err
}
