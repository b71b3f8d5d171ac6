package setup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// folders are where a container runtime looks for CNI plugins and configurations, as paths on the host.
type folders struct {
	runtime string   // with the file that says so
	bin     []string // of plugins
	conf    string   // of configurations
}

// Folders in which runtimes look unless their configurations say otherwise.
const (
	defaultBinDir  = "/opt/cni/bin"
	defaultConfDir = "/etc/cni/net.d"
)

// configurations of runtimes: files, later ones of which win, the end of the name of the section about CNI, and the keys in it.
var configurations = []struct {
	name, section string
	files         []string // patterns
	bin           []string // keys
	conf          string   // key
}{
	{"containerd", "cni", []string{"/etc/containerd/config.toml"}, []string{"bin_dir", "bin_dirs"}, "conf_dir"},
	{"containerd of k3s", "cni", []string{"/var/lib/rancher/k3s/agent/etc/containerd/config.toml"}, []string{"bin_dir", "bin_dirs"}, "conf_dir"},
	{"containerd of RKE2", "cni", []string{"/var/lib/rancher/rke2/agent/etc/containerd/config.toml"}, []string{"bin_dir", "bin_dirs"}, "conf_dir"},
	{"CRI-O", "network", []string{"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"}, []string{"plugin_dir", "plugin_dirs"}, "network_dir"},
}

// otherBinDirs are folders in which distributions keep plugins.
var otherBinDirs = []string{"/usr/lib/cni", "/usr/libexec/cni", "/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/k3s/data/cni"}

// wrongFolders returns the reason why the container runtime does not find the plugin in binDir or the configuration in confDir, and what to do; empty when it does, or when its
// configuration is not known. root is where the root of the host is. An empty confDir counts as the right one. Nothing is changed.
func wrongFolders(root, binDir, confDir string) string {
	runtimes, err := readRuntimes(root)
	if err != nil {
		return "the configuration of the container runtime cannot be read: " + err.Error()
	}
	host := onHost{root}
	var wrong []string
	for _, r := range runtimes {
		var faults []string
		if !slices.ContainsFunc(r.bin, func(dir string) bool { return host.same(dir, binDir) }) {
			faults = append(faults, fmt.Sprintf("looks for plugins in %s and not in %s: use --cni-bin-dir %s", strings.Join(r.bin, " and "), binDir, r.bin[0]))
		}
		if confDir != "" && !host.same(r.conf, confDir) {
			faults = append(faults, fmt.Sprintf("reads configurations in %s and not in %s: set write-cni-conf-when-ready=%s", r.conf, confDir,
				filepath.Join(r.conf, "05-waggle.conflist")))
		}
		if len(faults) == 0 {
			return "" // another runtime may be a left one
		}
		wrong = append(wrong, r.runtime+" "+strings.Join(faults, "; it "))
	}
	if len(runtimes) == 0 && !host.has(filepath.Join(binDir, "loopback")) {
		for _, dir := range otherBinDirs {
			if host.has(filepath.Join(dir, "loopback")) && !host.same(dir, binDir) {
				return fmt.Sprintf("there are plugins in %s, and none in %s: if the container runtime looks there, use --cni-bin-dir %s", dir, binDir, dir)
			}
		}
	}
	return strings.Join(wrong, ". ")
}

// readRuntimes returns the folders of each runtime that has a configuration. What it does not say is the runtime's default.
func readRuntimes(root string) (runtimes []folders, err error) {
	var errs []error
	for _, c := range configurations {
		files := c.files
		f := folders{bin: []string{defaultBinDir}, conf: defaultConfDir}
		for i := 0; i < len(files) && i < maxFiles; i++ {
			paths, err := filepath.Glob(filepath.Join(root, files[i])) // sorted
			errs = append(errs, err)
			for _, path := range paths {
				text, err := readText(path)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if f.runtime == "" {
					f.runtime = fmt.Sprintf("%s (%s)", c.name, files[i])
				}
				for _, v := range assignments(text) {
					dirs := slices.DeleteFunc(slices.Clone(v.values), func(dir string) bool { return !filepath.IsAbs(dir) })
					switch {
					case v.section == "" && v.key == "imports": // of containerd
						files = append(slices.Clone(files), dirs...)
					case !strings.HasSuffix("."+v.section, "."+c.section) || len(dirs) == 0:
					case slices.Contains(c.bin, v.key):
						f.bin = dirs
					case v.key == c.conf:
						f.conf = dirs[0]
					}
				}
			}
		}
		if f.runtime != "" {
			runtimes = append(runtimes, f)
		}
	}
	return runtimes, errors.Join(errs...)
}

const (
	maxFiles = 64      // of a runtime
	maxText  = 1 << 20 // bytes of a file
)

func readText(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxText))
	return string(text), err
}

// assignment is a string, or an array of strings, in a TOML document.
type assignment struct {
	section string // without quotes
	key     string
	values  []string
}

// assignments reads what runtimes have in their configurations of TOML: tables, and keys with strings or arrays of strings. Anything else is skipped.
func assignments(text string) (out []assignment) {
	var section string
	var open *assignment // an array that goes on
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case open != nil:
		case strings.HasPrefix(line, "["):
			name, _, _ := strings.Cut(strings.Trim(line, "["), "]")
			section = strings.Map(func(r rune) rune {
				if strings.ContainsRune(`"' `, r) {
					return -1
				}
				return r
			}, name)
			continue
		default:
			key, value, found := strings.Cut(line, "=")
			if !found || strings.HasPrefix(line, "#") {
				continue
			}
			out = append(out, assignment{section: section, key: strings.Trim(strings.TrimSpace(key), `"'`)})
			open, line = &out[len(out)-1], strings.TrimSpace(value)
			if !strings.HasPrefix(line, "[") {
				values, _ := quoted(line)
				open.values, open = values[:min(1, len(values))], nil
				continue
			}
		}
		values, rest := quoted(line)
		open.values = append(open.values, values...)
		if strings.Contains(rest, "]") {
			open = nil
		}
	}
	return out
}

// quoted returns the strings in a line, and what is between them, without a comment.
func quoted(line string) (values []string, between string) {
	for {
		i := strings.IndexAny(line, `"'#`)
		if i < 0 || line[i] == '#' {
			if i < 0 {
				i = len(line)
			}
			return values, between + line[:i]
		}
		between += line[:i]
		value, rest, closed := strings.Cut(line[i+1:], line[i:i+1])
		if !closed {
			return values, between
		}
		values, line = append(values, value), rest
	}
}

// onHost looks at files of the host.
type onHost struct{ root string }

func (h onHost) has(path string) bool {
	_, err := os.Stat(filepath.Join(h.root, h.resolve(path)))
	return err == nil
}

// same reports whether two paths are of one directory.
func (h onHost) same(a, b string) bool {
	a, b = h.resolve(a), h.resolve(b)
	if a == b {
		return true
	}
	one, errOne := os.Stat(filepath.Join(h.root, a))
	other, errOther := os.Stat(filepath.Join(h.root, b))
	return errOne == nil && errOther == nil && os.SameFile(one, other)
}

// resolve follows symbolic links at the end of a path, which may be absolute ones of the host.
func (h onHost) resolve(path string) string {
	path = filepath.Clean(path)
	for range 8 {
		target, err := os.Readlink(filepath.Join(h.root, path))
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = filepath.Clean(target)
	}
	return path
}
