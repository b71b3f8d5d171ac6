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

// folders are the directories in which a container runtime finds CNI plugins and configurations, as paths on the host.
type folders struct {
	runtime string   // name of the runtime, with the configuration file
	bin     []string // directories of plugins
	conf    string   // directory of configurations
}

// Default directories of runtimes.
const (
	defaultBinDir  = "/opt/cni/bin"
	defaultConfDir = "/etc/cni/net.d"
)

// configurations describes the configuration of each runtime: files, of which later ones take precedence, the end of the name of the CNI section, and the
// keys in it.
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

// otherBinDirs are directories in which distributions install plugins.
var otherBinDirs = []string{"/usr/lib/cni", "/usr/libexec/cni", "/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/k3s/data/cni"}

// wrongFolders returns the reason why the container runtime does not find the plugin in binDir or the configuration in confDir, with the remedy; empty
// if it finds both, or if its configuration is unknown. root is the path of the host's root. An empty confDir counts as correct. It changes nothing.
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
			return "" // the other runtime may be a remnant
		}
		wrong = append(wrong, r.runtime+" "+strings.Join(faults, "; it "))
	}
	if len(runtimes) == 0 && !host.has(filepath.Join(binDir, "loopback")) {
		for _, dir := range otherBinDirs {
			if host.has(filepath.Join(dir, "loopback")) && !host.same(dir, binDir) {
				return fmt.Sprintf("plugins are in %s, and not in %s: if the container runtime looks there, use --cni-bin-dir %s", dir, binDir, dir)
			}
		}
	}
	return strings.Join(wrong, ". ")
}

// readRuntimes returns the directories of each runtime with a configuration. Missing keys have the runtime's defaults.
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
	maxFiles = 64      // files of a runtime
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

// assignment is a key of a TOML document with its strings.
type assignment struct {
	section string // without quotes
	key     string
	values  []string
}

// assignments parses the part of TOML that runtimes use: tables, and keys with strings or arrays of strings. It skips everything else.
func assignments(text string) (out []assignment) {
	var section string
	var open *assignment // an array that continues on the next line
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

// quoted returns the strings in a line and the text between them, without a comment.
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

// onHost accesses files of the host.
type onHost struct{ root string }

func (h onHost) has(path string) bool {
	_, err := os.Stat(filepath.Join(h.root, h.resolve(path)))
	return err == nil
}

// same reports whether two paths lead to the same directory.
func (h onHost) same(a, b string) bool {
	a, b = h.resolve(a), h.resolve(b)
	if a == b {
		return true
	}
	one, errOne := os.Stat(filepath.Join(h.root, a))
	other, errOther := os.Stat(filepath.Join(h.root, b))
	return errOne == nil && errOther == nil && os.SameFile(one, other)
}

// resolve follows symbolic links at the end of a path; absolute links are relative to the host's root.
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
