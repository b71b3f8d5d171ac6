package cniconf

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
)

func TestNewOptions_InvalidFlag_IsNamed(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*Config){
		"write-cni-conf-when-ready": func(c *Config) { c.WriteCNIConfWhenReady = "net.d/05.conflist" },
		"read-cni-conf":             func(c *Config) { c.ReadCNIConf = "x.json" },
		"cni-log-file":              func(c *Config) { c.CNILogFile = "cni.log" },
		"cni-chaining-mode":         func(c *Config) { c.CNIChainingMode = "flannel" },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newOptions(c); err == nil || !strings.Contains(err.Error(), "--"+flag) {
			t.Errorf("%s: error %v does not name the flag", flag, err)
		}
	}
	c := DefaultConfig
	c.WriteCNIConfWhenReady = "/etc/cni/net.d/05-waggle.conf"
	if _, err := newOptions(c); err == nil {
		t.Error("a list in a .conf file was accepted, which runtimes would not read")
	}
	if _, err := newOptions(DefaultConfig); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

// Current libcni must read the list and select its newest version.
func TestContents_AreReadByLibcni(t *testing.T) {
	t.Parallel()
	o, err := newOptions(DefaultConfig)
	if err != nil {
		t.Fatal(err)
	}
	data, err := contents(o, "/run/w", "")
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.1.0" || list.Name != "waggle" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "waggle-cni" {
		t.Errorf("libcni reads %+v", list)
	}
}

// ensure writes a file with given contents as an agent does that has just started.
func ensure(t *testing.T, path, contents string) {
	t.Helper()
	c := &controller{params{Log: slog.New(slog.DiscardHandler), Options: options{Config{ReadCNIConf: "/given"}}}}
	if _, err := c.ensure(path, []byte(contents), &restorations{}); err != nil {
		t.Fatal(err)
	}
}

func TestEnsure_LeavesAnEqualFileAndReplacesALeftover(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a", "05.conflist")
	ensure(t, path, "one")
	before, _ := os.Stat(path)
	if before.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", before.Mode())
	}
	ensure(t, path, "one")
	if again, err := os.Stat(path); err != nil || !os.SameFile(before, again) {
		t.Errorf("an equal file was written again: %v", err)
	}
	if err := os.WriteFile(path+temporary, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(filepath.Dir(path), temporary, "left"), 0o700); err != nil {
		t.Fatal(err)
	}
	ensure(t, path, "two")
	got, _ := os.ReadFile(path)
	after, _ := os.Stat(path)
	if string(got) != "two" || after.Mode().Perm() != 0o644 || os.SameFile(before, after) {
		t.Errorf("contents %q, mode %v; it must be another file", got, after.Mode())
	}
	if isConf(path + temporary) {
		t.Error("runtimes would read the file while it is written")
	}
}

// A pipe must not block the agent, and the target of a link is the file of another program.
func TestEnsure_PipeOrLink_BecomesAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, target := filepath.Join(dir, "05.conflist"), filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, place := range map[string]func() error{
		"pipe":          func() error { return syscall.Mkfifo(path, 0o600) },
		"link":          func() error { return os.Symlink(target, path) },
		"dangling link": func() error { return os.Symlink(target+"-missing", path) },
	} {
		if err := errors.Join(os.RemoveAll(path), place()); err != nil {
			t.Fatal(err)
		}
		ensure(t, path, "own")
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: it is not replaced by a file: %v", name, err)
		}
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "other" {
		t.Errorf("the target of the link is %q, %v", got, err)
	}
}

func TestRenameOthers_OnlyConfigurations(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"05.conflist", "10-a.conf", "11-b.json", "12-c.conflist", "notes", "13.conf.waggle_bak"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	renamed, err := renameOthers(filepath.Join(dir, "05.conflist"))
	if err != nil || strings.Join(renamed, " ") != "10-a.conf 11-b.json 12-c.conflist" {
		t.Errorf("renamed %v, %v", renamed, err)
	}
	if again, err := renameOthers(filepath.Join(dir, "05.conflist")); err != nil || len(again) != 0 {
		t.Errorf("the second time: %v, %v", again, err)
	}
}

func TestIsMultus_RecognisesTheFirstType(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for text, want := range map[string]bool{
		`{"name": "m", "type": "multus"}`:                                    true,
		`{"name": "m", "type": "multus-shim"}`:                               true,
		`{"name": "m", "plugins": [{"type": "multus"}, {"type": "tuning"}]}`: true,
		`{"name": "m", "plugins": [{"type": "other"}, {"type": "multus"}]}`:  false,
		`{"name": "multus", "type": "other"}`:                                false,
		`{"type": "multus"`:                                                  false,
		``:                                                                   false,
	} {
		path := filepath.Join(dir, "00.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := isMultus(path); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	pipe := filepath.Join(dir, "01.conf")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if isMultus(pipe) || isMultus(dir) {
		t.Error("a pipe or a directory is no configuration")
	}
}

// containerd reads the directory again at each event except "created" and "attributes", and keeps the result of its last reading.
func TestEnsure_FileCompleteAtEachRuntimeEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "05.conflist")
	events, err := fsnotify.NewBufferedWatcher(100)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	if err := events.Add(dir); err != nil {
		t.Fatal(err)
	}
	for _, contents := range []string{"first", "replaced"} {
		ensure(t, path, contents)
		end := filepath.Join(dir, "end-"+contents)
		if err := os.WriteFile(end, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var counted []string
		for event := range events.Events {
			if event.Name == end {
				break
			}
			if !event.Has(fsnotify.Chmod) && !event.Has(fsnotify.Create) {
				counted = append(counted, event.Op.String()+" "+filepath.Base(event.Name))
			}
		}
		// The rename is the first event, and the file is complete by then; afterwards only the empty directory is removed.
		if got, want := strings.Join(counted, ", "), "RENAME 05.conflist.waggle_tmp, REMOVE .waggle_tmp"; got != want {
			t.Errorf("%s: runtimes read at %s, want %s", contents, got, want)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 3 {
		t.Errorf("left over: %v, %v", names, err)
	}
}
