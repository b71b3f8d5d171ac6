package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// hierarchy is one mounted tree of cgroups. A machine has several in version 1, one in version 2, or both.
type hierarchy struct {
	path    string // mount point
	version int
	options string // mount options that select the hierarchy; version 1 only
}

// hierarchies lists the cgroup mounts below /sys/fs/cgroup.
func hierarchies() (all []hierarchy, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[1]+"/", "/sys/fs/cgroup/") {
			continue
		}
		switch f[2] {
		case "cgroup":
			all = append(all, hierarchy{path: f[1], version: 1, options: mountOptions(f[3])})
		case "cgroup2":
			all = append(all, hierarchy{path: f[1], version: 2})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroups are mounted at /sys/fs/cgroup: mount them, as container runtimes need them")
	}
	return all, nil
}

// mountOptions returns the controllers or the name in a list of mount options, without the general options.
func mountOptions(all string) string {
	kept := slices.DeleteFunc(strings.Split(all, ","), func(o string) bool {
		return slices.Contains([]string{"rw", "ro", "relatime", "noatime", "nosuid", "nodev", "noexec", "seclabel", "xattr", "clone_children"}, o) ||
			strings.HasPrefix(o, "release_agent=")
	})
	if len(kept) == 1 && strings.HasPrefix(kept[0], "name=") {
		kept = append(kept, "none")
	}
	return strings.Join(kept, ",")
}

// alone reports whether version 2 is the only hierarchy of the machine and has all controllers.
func (h hierarchy) alone() bool { return h.version == 2 && h.path == "/sys/fs/cgroup" }

// tierPrefix is the prefix of the cgroups that test/tiers creates for tiers.
const tierPrefix = "waggle-tier-"

// below returns the parent cgroup for clusters: the cgroup of this process's tier, so that the tier's CPU time includes the nodes, or else the root.
// Tiers have cgroups only in a version 2 hierarchy beside version 1: there, version 1 keeps the controllers. A version 2 cgroup that holds processes cannot
// have children with controllers.
func (h hierarchy) below() string {
	if h.version == 1 || h.alone() {
		return h.path
	}
	own, _ := os.ReadFile("/proc/self/cgroup")
	return filepath.Join(h.path, tierOf(string(own)))
}

// tierOf returns the path of a tier's cgroup in the text of /proc/PID/cgroup, or "" if the process belongs to no tier.
func tierOf(text string) string {
	for line := range strings.Lines(text) {
		path, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !found {
			continue
		}
		parts := strings.Split(path, "/")
		for i := len(parts); i > 0; i-- {
			if strings.HasPrefix(parts[i-1], tierPrefix) {
				return strings.Join(parts[:i], "/")
			}
		}
	}
	return ""
}

// Cgroups lists the cgroups of test runs in all hierarchies whose names match a pattern of [filepath.Match].
func Cgroups(pattern string) (dirs []string, err error) {
	all, err := hierarchies()
	for _, h := range all {
		found, failed := h.find(pattern)
		dirs, err = append(dirs, found...), errors.Join(err, failed)
	}
	return dirs, err
}

// find lists the cgroups of one hierarchy whose names match a pattern: at the root and, in version 2, below each tier.
func (h hierarchy) find(pattern string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(h.path, pattern))
	if h.version == 1 || err != nil {
		return dirs, err
	}
	err = filepath.WalkDir(h.path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed concurrently
		case err != nil:
			return err
		case !entry.IsDir() || !strings.HasPrefix(entry.Name(), tierPrefix):
			return nil
		}
		found, err := filepath.Glob(filepath.Join(path, pattern))
		dirs = append(dirs, found...)
		return err
	})
	return dirs, err
}

// makeCgroups creates the cgroup name in every hierarchy and returns the folders.
func makeCgroups(name string) (dirs []string, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	return makeCgroupsIn(all, name)
}

func makeCgroupsIn(all []hierarchy, name string) (dirs []string, err error) {
	for _, h := range all {
		dir := h.below()
		for part := range strings.SplitSeq(name, "/") {
			if err := h.prepare(dir); err != nil {
				return nil, err
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, fmt.Errorf("make a cgroup: %w", err)
			}
			if err := h.inherit(parent, dir); err != nil {
				return nil, err
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// prepare enables all controllers for a cgroup's children. Version 1 needs no such step, and beside version 1 no runtime uses controllers of version 2.
func (h hierarchy) prepare(dir string) error {
	if !h.alone() {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("let children of cgroup %s use controller %s: %w", dir, name, err)
		}
	}
	return nil
}

// inherit copies what a version 1 cgroup needs before it takes processes.
func (h hierarchy) inherit(parent, child string) error {
	if h.version != 1 || !slices.Contains(strings.Split(h.options, ","), "cpuset") {
		return nil
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(child, name), value, 0)
		}
		if err != nil {
			return fmt.Errorf("copy %s of cgroup %s to its child: %w", name, parent, err)
		}
	}
	return nil
}

// removeCgroups removes the cgroup name and all its descendants from every hierarchy. It retries, since killed processes exit after a delay.
func removeCgroups(name string) error {
	run, node, _ := strings.Cut(name, "/")
	return retry(2*time.Minute, func() error {
		dirs, failed := Cgroups(run)
		for _, dir := range dirs {
			failed = errors.Join(failed, removeTree(filepath.Join(dir, node)))
		}
		return failed
	})
}

// removeTree removes the folders of a cgroup, the deepest first. The kernel removes the files in them.
func removeTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		if e := os.Remove(dir); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("remove a cgroup: %w", e))
		}
	}
	return err
}

// removeStaleCgroups removes the cgroups of runs whose two processes were killed simultaneously.
func removeStaleCgroups() {
	dirs, _ := Cgroups("waggle-kube-*") // errors are reported when cgroups are needed
	stale, live := map[string]bool{}, map[string]bool{}
	for _, dir := range dirs {
		stale[filepath.Base(dir)] = true
		if inUse(dir) {
			live[filepath.Base(dir)] = true
		}
	}
	for name := range stale {
		if !live[name] {
			_ = removeCgroups(name)
		}
	}
}

// inUse reports whether a cgroup or one of its descendants holds processes or was modified less than a minute ago. The list of processes would not suffice:
// it omits processes of other PID namespaces.
func inUse(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil || time.Since(info.ModTime()) < time.Minute {
		return err == nil
	}
	events, _ := os.ReadFile(filepath.Join(dir, "cgroup.events")) // version 2
	count, _ := os.ReadFile(filepath.Join(dir, "pids.current"))   // version 1, one of the hierarchies
	return strings.Contains(string(events), "populated 1") || strings.Trim(string(count), "0\n") != ""
}
