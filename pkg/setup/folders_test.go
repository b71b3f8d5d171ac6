package setup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hostTree creates a root directory with files, and with links for contents that begin with "->".
func hostTree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, link := strings.CutPrefix(text, "->"); link {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	debian = `version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni" # of Debian
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd"
`
	newest = `version = 3
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [ '/usr/lib/cni',
    # another one
    '/opt/cni/bin' ]
  conf_dir = '/etc/cni/net.d'
`
	k3s = `
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/var/lib/rancher/k3s/data/current/bin"
  conf_dir = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
`
	k3sConfig = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
	bare      = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n#bin_dir = \"/usr/lib/cni\"\n"
)

func TestWrongFolders_OfDistributions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		bin   string // value of --cni-bin-dir; empty for the default
		want  []string
	}{
		"nothing is known":                      {},
		"kubeadm, kind":                         {files: map[string]string{"/etc/containerd/config.toml": bare}},
		"Debian's containerd":                   {files: map[string]string{"/etc/containerd/config.toml": debian}, want: []string{"containerd (/etc/containerd/config.toml) looks for plugins in /usr/lib/cni and not in /opt/cni/bin: use --cni-bin-dir /usr/lib/cni"}},
		"Debian's containerd, heeded":           {files: map[string]string{"/etc/containerd/config.toml": debian}, bin: "/usr/lib/cni"},
		"Debian's containerd, linked":           {files: map[string]string{"/etc/containerd/config.toml": debian, "/usr/lib/cni": "->/opt/cni/bin", "/opt/cni/bin/loopback": ""}},
		"a relative link":                       {files: map[string]string{"/etc/containerd/config.toml": debian, "/opt/cni/bin": "->../../usr/lib/cni", "/usr/lib/cni/loopback": ""}},
		"containerd 2, one of two":              {files: map[string]string{"/etc/containerd/config.toml": newest}},
		"containerd 2, another":                 {files: map[string]string{"/etc/containerd/config.toml": newest}, bin: "/usr/libexec/cni", want: []string{"/usr/lib/cni and /opt/cni/bin and not in /usr/libexec/cni"}},
		"an imported file wins":                 {files: map[string]string{"/etc/containerd/config.toml": "imports = [\"/etc/containerd/conf.d/*.toml\"]\n" + debian, "/etc/containerd/conf.d/1.toml": strings.ReplaceAll(debian, "/usr/lib/cni", "/opt/cni/bin")}},
		"files that import each other":          {files: map[string]string{"/etc/containerd/config.toml": "imports = [\"/etc/containerd/config.toml\"]\n" + debian}, want: []string{"/usr/lib/cni"}},
		"k3s with flannel":                      {files: map[string]string{k3sConfig: k3s}, want: []string{"containerd of k3s", "use --cni-bin-dir /var/lib/rancher/k3s/data/current/bin", "; it reads configurations in /var/lib/rancher/k3s/agent/etc/cni/net.d", "write-cni-conf-when-ready=/var/lib/rancher/k3s/agent/etc/cni/net.d/05-waggle.conflist"}},
		"k3s without flannel":                   {files: map[string]string{k3sConfig: bare}},
		"k3s beside a left containerd":          {files: map[string]string{k3sConfig: bare, "/etc/containerd/config.toml": debian}},
		"CRI-O":                                 {files: map[string]string{"/etc/crio/crio.conf": "[crio]\n[crio.network]\n# plugin_dirs = [\n#\t\"/usr/lib/cni\",\n# ]\n"}},
		"CRI-O of a distribution":               {files: map[string]string{"/etc/crio/crio.conf": "", "/etc/crio/crio.conf.d/10-crio.conf": "[crio.network]\nplugin_dirs = [\n\t\"/usr/libexec/cni\",\n]\n"}, want: []string{"CRI-O (/etc/crio/crio.conf) looks for plugins in /usr/libexec/cni", "--cni-bin-dir /usr/libexec/cni"}},
		"CRI-O, the last file wins":             {files: map[string]string{"/etc/crio/crio.conf.d/1.conf": "[crio.network]\nplugin_dirs = [\"/usr/lib/cni\"]\n", "/etc/crio/crio.conf.d/2.conf": "[crio.network]\nplugin_dirs = [\"/opt/cni/bin/\"]\nnetwork_dir = \"/etc/cni/net.d/\"\n"}},
		"two runtimes, both with other folders": {files: map[string]string{"/etc/containerd/config.toml": debian, "/etc/crio/crio.conf": "[crio.network]\nnetwork_dir = \"/etc/crio/net.d\"\n"}, want: []string{"/usr/lib/cni. CRI-O", "reads configurations in /etc/crio/net.d and not in /etc/cni/net.d"}},
		"plugins in another folder":             {files: map[string]string{"/usr/libexec/cni/loopback": ""}, want: []string{"plugins are in /usr/libexec/cni, and not in /opt/cni/bin"}},
		"plugins in both":                       {files: map[string]string{"/usr/libexec/cni/loopback": "", "/opt/cni/bin/loopback": ""}},
		"a key of another section":              {files: map[string]string{"/etc/containerd/config.toml": "bin_dir = \"/x\"\n[plugins.other]\nbin_dir = \"/y\"\n"}},
		"no strings, and relative ones":         {files: map[string]string{"/etc/containerd/config.toml": "[a.cni]\nbin_dir = 7\nconf_dir = \"net.d\"\nbin_dirs = [\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := c.bin
			if bin == "" {
				bin = defaultBinDir
			}
			got := wrongFolders(hostTree(t, c.files), bin, defaultConfDir)
			if len(c.want) == 0 && got != "" {
				t.Errorf("said %q", got)
			}
			for _, part := range c.want {
				if !strings.Contains(got, part) {
					t.Errorf("said %q, want %q in it", got, part)
				}
			}
		})
	}
}

// TestWrongFolders_NoConfiguration: without --write-cni-conf-when-ready the agent does not write the configuration, and only the plugin counts.
func TestWrongFolders_NoConfiguration(t *testing.T) {
	t.Parallel()
	root := hostTree(t, map[string]string{k3sConfig: k3s})
	if got := wrongFolders(root, "/var/lib/rancher/k3s/data/current/bin", ""); got != "" {
		t.Errorf("said %q", got)
	}
}

// TestWrongFolders_Unreadable checks that the result names the unreadable file.
func TestWrongFolders_Unreadable(t *testing.T) {
	t.Parallel()
	root := hostTree(t, map[string]string{"/etc/containerd/config.toml/x": ""})
	if got := wrongFolders(root, defaultBinDir, defaultConfDir); !strings.Contains(got, "cannot be read") || !strings.Contains(got, "config.toml") {
		t.Errorf("said %q", got)
	}
}

func TestAssignments_OfTOML(t *testing.T) {
	t.Parallel()
	got := assignments("a = \"1\" # \"x\"\n b = [ 'x', \"y\" ] # 'z'\n[s.\"t.u\".v]\n\"c\" = [\n # 'no'\n '1', # '2'\n\n '3']\nd = 5\n[[e]]\nf='g'\n")
	want := []assignment{{"", "a", []string{"1"}}, {"", "b", []string{"x", "y"}}, {"s.t.u.v", "c", []string{"1", "3"}}, {"s.t.u.v", "d", nil}, {"e", "f", []string{"g"}}}
	if !slices.EqualFunc(got, want, func(a, b assignment) bool {
		return a.section == b.section && a.key == b.key && slices.Equal(a.values, b.values)
	}) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func FuzzAssignments(f *testing.F) {
	f.Add(debian)
	f.Add("a=[\"")
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range assignments(text) {
			for _, v := range a.values {
				if !strings.Contains(text, v) {
					t.Errorf("%q is not in %q", v, text)
				}
			}
		}
	})
}
