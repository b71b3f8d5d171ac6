package setup

import (
	"os"
	"testing"

	"github.com/waggle-net/waggle/pkg/testnet"
	"golang.org/x/sys/unix"
)

// TestPrivilegedOnThread_KeepsNamespaceOfMainThread: the main thread of a process cannot end. If it entered a namespace, /proc/<pid>/ns/net would
// show that one, and it would exist until the process ends, which runs until the node shuts down.
func TestPrivilegedOnThread_KeepsNamespaceOfMainThread(t *testing.T) {
	testnet.RequirePrivileges(t)
	before, err := os.Readlink("/proc/self/ns/net") // of the main thread
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if err := onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
		t.Errorf("the main thread went from %s to %s: %v", before, after, err)
	}
}
