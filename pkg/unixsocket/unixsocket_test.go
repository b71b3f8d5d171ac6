package unixsocket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListen_ReplacesOnlyStaleSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deeper", "s.sock")
	first, err := Listen(path, Options{Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, error %v", info.Mode(), err)
	}
	if _, err := Listen(path, Options{Mode: 0o600}); err == nil || !strings.Contains(err.Error(), "another process serves") {
		t.Fatalf("a living socket was taken over: %v", err)
	}
	// A killed agent leaves the file without a listener.
	if err := first.UnixListener.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, Options{Mode: 0o660})
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close() // the file belongs to the second listener now
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the first listener removed the second's file: %v", err)
	}
	conn.Close()
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestListen_RejectsOtherFilesAndLongPaths(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, Options{}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "precious" {
		t.Error("the file was overwritten")
	}
	if _, err := Listen("/tmp/"+strings.Repeat("x", 120), Options{}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a long path: %v", err)
	}
}
