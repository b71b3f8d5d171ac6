package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// swap replaces the files of a directory from [directory] as kubelet does: new files, then the link ..data, then links of new and removed keys.
func swap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(dir, version, name), []byte(content), 0o644))
	}
	must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if _, kept := files[e.Name()]; !kept && !strings.HasPrefix(e.Name(), "..") {
			must(t, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	for name := range files {
		if err := os.Symlink("..data/"+name, filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

// load returns the reader of a process with these arguments and files.
func load(t *testing.T, dir string, args, environ []string) *Reader {
	t.Helper()
	flags := newFlags()
	flags.String(RoleFlag, RoleNode, "")
	flags.StringSlice(AcceptFlag, nil, "")
	must(t, flags.Parse(append(args, "--config-dir="+dir)))
	eff, err := Load(flags, environ)
	must(t, err)
	return eff.Reader
}

// with returns the files with one that is added or has another content.
func with(files map[string]string, key, content string) map[string]string {
	files = maps.Clone(files)
	files[key] = content
	return files
}

func without(files map[string]string, key string) map[string]string {
	files = maps.Clone(files)
	delete(files, key)
	return files
}

// texts returns one line for each option.
func texts(options []Option) (out []string) {
	for _, o := range options {
		out = append(out, fmt.Sprintf("%s=%s %s %s", o.Key, o.Value, o.Source, filepath.Base(o.Origin)))
	}
	return out
}

func TestReader_FollowsTheDirectory(t *testing.T) {
	t.Parallel()
	start := map[string]string{"device-mtu": "9000\n", "node-name": "bee", "exclude-devices": "lo,eth9", "ipam-quarantine": "60s", "tunnel": "vxlan"}
	for name, c := range map[string]struct {
		args, environ []string
		files         map[string]string
		want          []string
		rejected      string
	}{
		"same":                             {nil, nil, start, nil, ""},
		"same values in another form":      {nil, nil, with(start, "ipam-quarantine", "1m\n"), nil, ""},
		"another value":                    {nil, nil, with(start, "device-mtu", "1400"), []string{"device-mtu=1400 directory device-mtu"}, ""},
		"another list":                     {nil, nil, with(start, "exclude-devices", "lo"), []string{"exclude-devices=[lo] directory exclude-devices"}, ""},
		"a new key":                        {nil, nil, with(start, "enable-ipv4", "false"), []string{"enable-ipv4=false directory enable-ipv4"}, ""},
		"a new key with the default":       {nil, nil, with(start, "enable-ipv4", "true"), nil, ""},
		"a removed key":                    {nil, nil, without(start, "device-mtu"), []string{"device-mtu=1500 default ."}, ""},
		"an empty number is not set":       {nil, nil, with(start, "device-mtu", ""), []string{"device-mtu=1500 default ."}, ""},
		"an empty text":                    {nil, nil, with(start, "node-name", ""), []string{"node-name= directory node-name"}, ""},
		"an old key":                       {nil, nil, with(start, "tunnel", "disabled"), []string{"routing-mode=native directory tunnel"}, ""},
		"two options":                      {nil, nil, map[string]string{"device-mtu": "9000", "node-name": "bee", "ipam-quarantine": "2m", "tunnel": "vxlan"}, []string{"exclude-devices=[lo] default .", "ipam-quarantine=2m0s directory ipam-quarantine"}, ""},
		"a flag has precedence":            {[]string{"--device-mtu=1300"}, nil, with(start, "device-mtu", "1400"), nil, ""},
		"a list as a flag":                 {[]string{"--exclude-devices=a,b"}, nil, with(start, "exclude-devices", "c"), nil, ""},
		"the environment has precedence":   {nil, []string{"WAGGLE_DEVICE_MTU=1300"}, with(start, "device-mtu", "1400"), nil, ""},
		"an option of Cilium":              {nil, nil, with(start, "policy-queue-size", "7"), nil, ""},
		"an unknown key":                   {nil, nil, with(start, "nod-name", "x"), nil, `unknown option "nod-name", the nearest known one is "node-name"`},
		"a bad value":                      {nil, nil, with(start, "device-mtu", "big"), nil, `/device-mtu: bad value "big": want a whole number`},
		"an unknown role":                  {nil, nil, with(start, "role", "queen"), nil, "use node or cluster"},
		"an empty role":                    {nil, nil, with(start, "role", ""), nil, "use node or cluster"},
		"a mistake beside another value":   {nil, nil, map[string]string{"device-mtu": "1400", "debug": "perhaps"}, nil, "--debug"},
		"a protection of Cilium":           {nil, nil, with(start, "enable-wireguard", "true"), nil, "--accept-unprotected=enable-wireguard"},
		"a protection that the flag lists": {[]string{"--accept-unprotected=enable-wireguard"}, nil, with(start, "enable-wireguard", "true"), nil, ""},
		"a protection and another role":    {[]string{"--role=cluster"}, nil, with(start, "enable-wireguard", "true"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := directory(t, start)
			r := load(t, dir, c.args, c.environ)
			swap(t, dir, "..2027", c.files)
			for range 2 { // the second result comes from the memory of the first
				changed, rejected, err := r.Compare()
				must(t, err)
				if got := texts(changed); !slices.Equal(got, c.want) {
					t.Errorf("changed options %q, want %q", got, c.want)
				}
				if c.rejected == "" && rejected != nil || c.rejected != "" && (rejected == nil || !strings.Contains(rejected.Error(), c.rejected)) {
					t.Errorf("rejected with %v, want %q", rejected, c.rejected)
				}
			}
			swap(t, dir, "..2028", start)
			if changed, rejected, err := r.Compare(); len(changed) > 0 || rejected != nil || err != nil {
				t.Errorf("after the change is undone: %q, %v, %v", texts(changed), rejected, err)
			}
		})
	}
}

func TestReader_UnreadableDirectory_KeepsTheResult(t *testing.T) {
	t.Parallel()
	dir := directory(t, map[string]string{"device-mtu": "9000"})
	r := load(t, dir, nil, nil)
	swap(t, dir, "..2027", map[string]string{"device-mtu": "1400"})
	want := []string{"device-mtu=1400 directory device-mtu"}
	if changed, _, err := r.Compare(); err != nil || !slices.Equal(texts(changed), want) {
		t.Fatalf("changed %q, %v", texts(changed), err)
	}
	must(t, os.Rename(dir, dir+".away"))
	if changed, _, err := r.Compare(); err == nil || !strings.Contains(err.Error(), "read the directory") || !slices.Equal(texts(changed), want) {
		t.Errorf("without the directory: changed %q, %v", texts(changed), err)
	}
	must(t, os.Rename(dir+".away", dir))
	if changed, _, err := r.Compare(); err != nil || !slices.Equal(texts(changed), want) {
		t.Errorf("with the directory again: changed %q, %v", texts(changed), err)
	}
}

// A comparison that set a flag of the process would change the options of readers of the flags.
func TestReader_LeavesTheFlagsOfTheProcess(t *testing.T) {
	t.Parallel()
	dir := directory(t, map[string]string{"device-mtu": "9000"})
	r := load(t, dir, []string{"--exclude-devices=a"}, nil)
	swap(t, dir, "..2027", map[string]string{"device-mtu": "1400", "node-name": "bee", "exclude-devices": "b", "debug": "true"})
	if changed, _, err := r.Compare(); err != nil || len(changed) != 3 {
		t.Fatalf("changed %q, %v", texts(changed), err)
	}
	for key, want := range map[string]string{"device-mtu": "9000", "node-name": "", "exclude-devices": "[a]", "debug": "false"} {
		if got := r.flags.Lookup(key).Value.String(); got != want {
			t.Errorf("--%s is %q, want %q", key, got, want)
		}
	}
}

// Without an own case in newValue, another form of the same value would be reported as a change.
func TestNewValue_HasTheTypeOfTheFlag(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"bool", "int", "float32", "float64", "duration", "stringSlice", "string"} {
		if got := newValue(kind).Type(); got != kind {
			t.Errorf("the value for %s is a %s", kind, got)
		}
	}
}

func TestLoad_WithoutDirectory_HasNoReader(t *testing.T) {
	t.Parallel()
	flags := newFlags()
	must(t, flags.Parse(nil))
	if eff, err := Load(flags, nil); err != nil || eff.Reader != nil {
		t.Errorf("reader %v, %v", eff.Reader, err)
	}
}
