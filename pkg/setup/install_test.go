package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstall_ReplacesDifferentFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "new"), filepath.Join(dir, "made", "bin", PluginName)
	if err := os.WriteFile(from, []byte("plugin 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	step := func(name string, want bool) {
		t.Helper()
		if installed, err := install(from, to); err != nil || installed != want {
			t.Errorf("%s: wrote %v, %v", name, installed, err)
		}
		info, err := os.Lstat(to)
		if err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if names, err := os.ReadDir(filepath.Dir(to)); err != nil || len(names) != 1 {
			t.Errorf("%s: files are left: %v, %v", name, names, err)
		}
	}
	step("first", true)
	step("again", false)
	if err := os.Chmod(to, 0o600); err != nil {
		t.Fatal(err)
	}
	step("of another mode", true)
	if err := os.WriteFile(filepath.Join(filepath.Dir(to), TemporaryName), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(from, []byte("plugin 2"), 0o600); err != nil {
		t.Fatal(err)
	}
	step("another version, after a run was killed", true)
	// A symbolic link must be replaced, not followed.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, to); err != nil {
		t.Fatal(err)
	}
	step("a link", true)
	if text, _ := os.ReadFile(other); string(text) != "mine" {
		t.Errorf("the target of a link was written: %q", text)
	}
}

// Replacing a running plugin must not fail with ETXTBSY, and the running process keeps its file.
func TestInstall_OpenOldFile_IsUnchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "new"), filepath.Join(dir, PluginName)
	for path, text := range map[string]string{from: "new", to: "old"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := install(from, to); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 8)
	if n, _ := open.Read(text); string(text[:n]) != "old" {
		t.Errorf("the old file was overwritten: %q", text[:n])
	}
}

func TestInstall_NamesRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := install(filepath.Join(dir, "none"), filepath.Join(dir, "x")); err == nil || !strings.Contains(err.Error(), "--cni-plugin-path") {
		t.Errorf("no plugin: %v", err)
	}
	from := filepath.Join(dir, "plugin")
	if err := os.WriteFile(from, []byte("p"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := install(from, filepath.Join(from, "x")); err == nil {
		t.Error("a directory that is a file was accepted")
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := install(from, filepath.Join(dir, "d")); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory in the way: %v", err)
	}
	if why := loopbackMissing(dir); !strings.Contains(why, dir) {
		t.Errorf("no loopback: %q", why)
	}
	if err := os.WriteFile(filepath.Join(dir, "loopback"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if why := loopbackMissing(dir); why != "" {
		t.Errorf("with loopback: %q", why)
	}
}

func TestFailure_ReportsPluginOutput(t *testing.T) {
	t.Parallel()
	for stdout, want := range map[string]string{
		`{"code":11,"msg":"not ready","details":"wait"}`: "not ready (code 11): wait", "panic": `"panicerr"`, "": `"err"`,
	} {
		if got := failure([]byte(stdout), []byte("err")); got != want {
			t.Errorf("%q: %s, want %s", stdout, got, want)
		}
	}
}

func TestLock_SecondSetup_Fails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	if unlock, err = lock(dir); err != nil {
		t.Errorf("after the first has ended: %v", err)
	} else {
		unlock()
	}
}
