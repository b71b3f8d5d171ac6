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
	path    string // where it is mounted
	version int
	options string // that choose it when it is mounted again; version 1
}

// hierarchies lists what is mounted below /sys/fs/cgroup.
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

// mountOptions are the options of a mount without the general ones: controllers, or a name.
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

// alone reports whether the machine has version 2 alone, with all controllers.
func (h hierarchy) alone() bool { return h.version == 2 && h.path == "/sys/fs/cgroup" }

// tierPrefix begins the name of the cgroup that test/tiers makes for a tier.
const tierPrefix = "waggle-tier-"

// below returns the cgroup in which clusters have theirs: that of the tier that this process belongs to, whose CPU time then includes
// that of nodes, and otherwise the root. Only version 2 beside version 1 has such cgroups: version 1 keeps the controllers, and where version 2
// has them, a cgroup that holds processes has no children with controllers.
func (h hierarchy) below() string {
	if h.version == 1 || h.alone() {
		return h.path
	}
	own, _ := os.ReadFile("/proc/self/cgroup")
	return filepath.Join(h.path, tierOf(string(own)))
}

// tierOf finds the path of a tier's cgroup in the text of /proc/PID/cgroup; "" when the process belongs to none.
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

// Cgroups lists the cgroups of runs, in all hierarchies, whose name matches a pattern as of [filepath.Match].
func Cgroups(pattern string) (dirs []string, err error) {
	all, err := hierarchies()
	for _, h := range all {
		found, failed := h.find(pattern)
		dirs, err = append(dirs, found...), errors.Join(err, failed)
	}
	return dirs, err
}

// find lists the cgroups of one hierarchy whose name matches a pattern: at the root, or in version 2 below any tier.
func (h hierarchy) find(pattern string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(h.path, pattern))
	if h.version == 1 || err != nil {
		return dirs, err
	}
	err = filepath.WalkDir(h.path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it was removed meanwhile
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

// makeCgroups makes the cgroup name in every hierarchy and returns the folders.
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

// prepare lets a cgroup's children use all controllers. In version 1 they always may, and beside version 1 no runtime asks version 2 for any.
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

// removeCgroups removes the cgroup name and all below it from every hierarchy. Processes that were killed need a moment.
func removeCgroups(name string) error {
	run, node, _ := strings.Cut(name, "/")
	return retry(30*time.Second, func() error {
		dirs, failed := Cgroups(run)
		for _, dir := range dirs {
			failed = errors.Join(failed, removeTree(filepath.Join(dir, node)))
		}
		return failed
	})
}

// removeTree removes the folders of a cgroup, the deepest first; the files in them go with them.
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

// removeStaleCgroups removes what runs have left whose two processes were killed at once.
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

// inUse says whether a cgroup, or one below it, holds processes, or may soon. The list of processes would not tell: it
// leaves out those of other PID namespaces.
func inUse(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil || time.Since(info.ModTime()) < time.Minute {
		return err == nil
	}
	events, _ := os.ReadFile(filepath.Join(dir, "cgroup.events")) // version 2
	count, _ := os.ReadFile(filepath.Join(dir, "pids.current"))   // version 1, one of the hierarchies
	return strings.Contains(string(events), "populated 1") || strings.Trim(string(count), "0\n") != ""
}
