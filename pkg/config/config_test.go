package config

import (
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/testseed"
)

// newFlags returns a set with a flag of each relevant type.
func newFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.String(DirFlag, "", "")
	flags.Bool("debug", false, "")
	flags.Bool("enable-ipv4", true, "")
	flags.Int("device-mtu", 1500, "")
	flags.Duration("ipam-quarantine", 30*time.Second, "")
	flags.String("node-name", "", "")
	flags.StringSlice("exclude-devices", []string{"lo"}, "")
	flags.String("routing-mode", "tunnel", "")
	AddForeign(flags)
	return flags
}

// directory creates a configuration directory as kubelet mounts a ConfigMap: the files are symbolic links through the link ..data.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "..2026"), 0o755))
	must(t, os.Symlink("..2026", filepath.Join(dir, "..data")))
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(dir, "..2026", name), []byte(content), 0o644))
		must(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLoad_Precedence(t *testing.T) {
	t.Parallel()
	dir := directory(t, map[string]string{"device-mtu": "9000\n", "node-name": "from-file\n", "ipam-quarantine": "5s", "debug": "true\n"})
	for name, c := range map[string]struct {
		args, environ []string
		key, want     string
		source        Source
		origin        string
	}{
		"flag before all":              {[]string{"--device-mtu=1400"}, []string{"WAGGLE_DEVICE_MTU=1300"}, "device-mtu", "1400", Flag, "--device-mtu"},
		"flag that repeats a default":  {[]string{"--device-mtu=1500"}, []string{"WAGGLE_DEVICE_MTU=1300"}, "device-mtu", "1500", Flag, "--device-mtu"},
		"environment before directory": {nil, []string{"WAGGLE_DEVICE_MTU=1300"}, "device-mtu", "1300", Environment, "WAGGLE_DEVICE_MTU"},
		"directory before default":     {nil, nil, "device-mtu", "9000", Directory, filepath.Join(dir, "device-mtu")},
		"default":                      {nil, nil, "enable-ipv4", "true", Default, ""},
		"newline is no part":           {nil, nil, "node-name", "from-file", Directory, filepath.Join(dir, "node-name")},
		"duration":                     {nil, nil, "ipam-quarantine", "5s", Directory, filepath.Join(dir, "ipam-quarantine")},
		"bool from directory":          {nil, nil, "debug", "true", Directory, filepath.Join(dir, "debug")},
		"list from environment":        {nil, []string{"WAGGLE_EXCLUDE_DEVICES=a,b"}, "exclude-devices", "[a,b]", Environment, "WAGGLE_EXCLUDE_DEVICES"},
		"empty variable is not set":    {nil, []string{"WAGGLE_DEVICE_MTU="}, "device-mtu", "9000", Directory, filepath.Join(dir, "device-mtu")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := newFlags()
			must(t, flags.Parse(append(c.args, "--config-dir="+dir)))
			eff, err := Load(flags, c.environ)
			must(t, err)
			if len(eff.Warnings) > 0 || len(eff.Ignored) > 0 {
				t.Errorf("warnings %q, ignored %q", eff.Warnings, eff.Ignored)
			}
			if got := flags.Lookup(c.key).Value.String(); got != c.want {
				t.Errorf("the flag is %q, want %q", got, c.want)
			}
			for _, o := range eff.Options {
				if o.Key == c.key && (o.Value != c.want || o.Source != c.source || o.Origin != c.origin) {
					t.Errorf("option %+v, want %q from %s %q", o, c.want, c.source, c.origin)
				}
				if isForeign(flags.Lookup(o.Key)) {
					t.Errorf("%s is listed as an option", o.Key)
				}
			}
		})
	}
}

func TestLoad_DirectoryNamedByTheEnvironment(t *testing.T) {
	t.Parallel()
	dir := directory(t, map[string]string{"node-name": "bee"})
	flags := newFlags()
	eff, err := Load(flags, []string{"WAGGLE_CONFIG_DIR=" + dir})
	must(t, err)
	if got := flags.Lookup("node-name").Value.String(); got != "bee" {
		t.Errorf("node-name is %q in %+v", got, eff.Options)
	}
}

// TestLoad_Rejects checks the text of the error for each kind of mistake.
func TestLoad_Rejects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files   map[string]string
		environ []string
		want    []string
	}{
		"unknown key in the directory": {map[string]string{"enable-ip4": "true"}, nil,
			[]string{`/enable-ip4: unknown option "enable-ip4", the nearest known one is "enable-ipv4"`}},
		"unknown key near nothing": {map[string]string{"zzz-qqq-xxx": "1"}, nil, []string{`unknown option "zzz-qqq-xxx"`}},
		"bad number in the directory": {map[string]string{"device-mtu": "big"}, nil,
			[]string{"--device-mtu from ", `/device-mtu: bad value "big": want a whole number`}},
		"bad bool in the environment": {nil, []string{"WAGGLE_DEBUG=perhaps"},
			[]string{`--debug from WAGGLE_DEBUG: bad value "perhaps": want true or false`}},
		"bad duration in the environment": {nil, []string{"WAGGLE_IPAM_QUARANTINE=30"},
			[]string{"--ipam-quarantine from WAGGLE_IPAM_QUARANTINE", "want a duration such as 30s"}},
		"all mistakes at once": {map[string]string{"device-mtu": "big", "nod-name": "x"}, []string{"WAGGLE_DEBUG=perhaps"},
			[]string{"--device-mtu", "nod-name", "--debug"}},
		"a directory that names a directory": {map[string]string{"config-dir": "/x"}, nil, []string{"cannot name a directory"}},
		"binary":                             {map[string]string{"node-name": "\xff"}, nil, []string{"/node-name: is not UTF-8 text"}},
		"NUL":                                {map[string]string{"node-name": "a\x00b"}, nil, []string{"contains a NUL byte"}},
		"too large":                          {map[string]string{"node-name": strings.Repeat("x", maxFile+1)}, nil, []string{"/node-name: is larger than"}},
		"a long key":                         {map[string]string{strings.Repeat("k", 200): "x"}, nil, []string{"kkk...\""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := newFlags()
			must(t, flags.Parse([]string{"--config-dir=" + directory(t, c.files)}))
			_, err := Load(flags, c.environ)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestLoad_InvalidDirectory(t *testing.T) {
	t.Parallel()
	load := func(dir string) string {
		flags := newFlags()
		must(t, flags.Parse([]string{"--config-dir=" + dir}))
		if _, err := Load(flags, nil); err != nil {
			return err.Error()
		}
		return ""
	}
	if got := load("/does/not/exist"); !strings.Contains(got, "--config-dir=/does/not/exist: read the directory: no such file") {
		t.Errorf("missing directory: %q", got)
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	if got := load(dir); !strings.Contains(got, "/sub: is not a regular file") {
		t.Errorf("directory in the directory: %q", got)
	}
	var files = map[string]string{}
	for _, c := range "abcdefghijklmnop" {
		files["zzzzzzzzzz-"+string(c)] = "x"
	}
	if got := load(directory(t, files)); strings.Count(got, "\n") != maxErrors || !strings.Contains(got, "and 6 more") {
		t.Errorf("many mistakes: %q", got)
	}
}

func TestLoad_ForeignKeysAreOneWarning(t *testing.T) {
	t.Parallel()
	dir := directory(t, map[string]string{"policy-queue-size": "1", "ces-slice-mode": "fcfs", "node-name": "bee",
		"bpf-node-map-max": "16384", "enable-l2-neigh-discovery": "true"})
	flags := newFlags()
	must(t, flags.Parse([]string{"--enable-gops", "--tunnel-source-port-range", "0-0", "--config-dir", dir}))
	if flags.NArg() != 0 {
		t.Fatalf("arguments are left: %q", flags.Args())
	}
	eff, err := Load(flags, []string{"WAGGLE_KVSTORE=etcd"})
	must(t, err)
	if len(eff.Warnings) != 1 || len(eff.Ignored) != 7 {
		t.Fatalf("warnings %q, ignored %q", eff.Warnings, eff.Ignored)
	}
	for _, want := range []string{"--enable-gops", "--tunnel-source-port-range", "WAGGLE_KVSTORE", "/policy-queue-size", "/ces-slice-mode",
		"/bpf-node-map-max", "/enable-l2-neigh-discovery"} {
		if !strings.Contains(eff.Warnings[0], want) {
			t.Errorf("%q does not name %s", eff.Warnings[0], want)
		}
	}
}

func TestLoad_Environment(t *testing.T) {
	t.Parallel()
	eff, err := Load(newFlags(), []string{
		"WAGGLE_SERVICE_HOST=10.96.0.1", "WAGGLE_SERVICE_PORT=443", "WAGGLE_SERVICE_PORT_HTTPS=443", "WAGGLE_PORT=tcp://10.96.0.1:443",
		"WAGGLE_PORT_443_TCP=tcp://10.96.0.1:443", "WAGGLE_PORT_443_TCP_PROTO=tcp", "WAGGLE_METRICS_SERVICE_HOST=10.96.0.2",
		"WAGGLE_METRICS_PORT=tcp://10.96.0.2:80", "WAGGLE_SOCK=/x.sock", "PATH=/bin", "WAGGLEX=1", "malformed",
		"WAGGLE_DEVICE_MUT=1400",
	})
	must(t, err)
	want := "environment variable WAGGLE_DEVICE_MUT is no option of the agent, the nearest known one is WAGGLE_DEVICE_MTU"
	if len(eff.Warnings) != 1 || eff.Warnings[0] != want {
		t.Errorf("warnings: %q", eff.Warnings)
	}
}

func TestFlagError(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--enable-ip4":             `unknown option "--enable-ip4", the nearest known one is "--enable-ipv4"`,
		"--device-mtu=big":         `--device-mtu: bad value "big": want a whole number`,
		"--debug=perhaps":          `--debug: bad value "perhaps": want true or false`,
		"--completely-else-at-all": `unknown option "--completely-else-at-all"`,
	} {
		flags := newFlags()
		if got := FlagError(flags, flags.Parse([]string{arg})); got == nil || got.Error() != want {
			t.Errorf("%s: %v, want %s", arg, got, want)
		}
	}
}

// TestForeignKeys: each word appears once and has the form of a key, so every entry can match.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for key := range strings.FieldsSeq(foreignSwitches + " " + foreignValues + " " + foreignOperator) {
		if seen[key] || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("key %q is doubled or malformed", key)
		}
		seen[key] = true
	}
}

func TestDistance_AgreesWithTheDefinition(t *testing.T) {
	t.Parallel()
	var naive func(a, b string) int
	naive = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		if a[0] == b[0] {
			return naive(a[1:], b[1:])
		}
		return 1 + min(naive(a[1:], b), naive(a, b[1:]), naive(a[1:], b[1:]))
	}
	letters := func(n uint16) string { // up to 6 of the letters a, b and c
		s := make([]byte, n%7)
		for i := range s {
			s[i] = 'a' + byte(n>>(2*i+3)%3)
		}
		return string(s)
	}
	if err := quick.Check(func(a, b uint16) bool {
		return distance(letters(a), letters(b)) == naive(letters(a), letters(b))
	}, &quick.Config{Rand: rand.New(rand.NewSource(int64(testseed.Seed(t))))}); err != nil {
		t.Error(err)
	}
}

// FuzzFile: for any content of a file, the result is an error or a value for a flag, and never a panic.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{"", "true\n", "1500", "30s\r\n", "\x00", "\xff\xfe", "a,b\n\n", strings.Repeat("9", 40)} {
		f.Add("device-mtu", []byte(seed))
	}
	f.Add("node-name\x1b[31m", []byte("x"))
	f.Fuzz(func(t *testing.T, key string, content []byte) {
		value, err := parseFile(content)
		if err != nil {
			return
		}
		if strings.HasSuffix(value, "\n") || strings.ContainsRune(value, 0) {
			t.Errorf("value %q", value)
		}
		flags := newFlags()
		flag := flags.Lookup(key)
		if flag == nil {
			if msg := unknownKey(entry{key: key, origin: "file", source: Directory}, flags).Error(); strings.ContainsAny(msg, "\x1b\n") {
				t.Errorf("message %q carries control characters", msg)
			}
			return
		}
		if err := flags.Set(key, value); err != nil {
			if msg := badValue(entry{key: key, value: value, origin: "file"}, flag, err).Error(); strings.ContainsAny(msg, "\x1b\n") {
				t.Errorf("message %q carries control characters", msg)
			}
		}
	})
}
