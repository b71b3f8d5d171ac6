// Package testnet provides network namespaces for tests.
package testnet

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// MachineEnv names the environment variable that identifies the dependencies of kernel tests outside the source tree: the kernel, the number of CPUs, the
// installed Debian packages.
const MachineEnv = "WAGGLE_MACHINE"

// UsesMachine tells Go's test cache that the result depends on the machine: a cached result is valid only while [MachineEnv] has the same value.
func UsesMachine() { _ = os.Getenv(MachineEnv) }

// RequirePrivileges skips the test unless it runs as root, and prints how to run it.
func RequirePrivileges(t testing.TB) {
	t.Helper()
	UsesMachine()
	if os.Geteuid() != 0 {
		t.Skip("needs root with CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_BPF: run the tests as root")
	}
}

// Missing skips the test if the machine lacks an optional dependency. With CI=true the test fails instead: CI machines must be able to run it.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Namespace is a network namespace that is removed at the end of the test.
type Namespace struct {
	t  testing.TB
	ns netns.NsHandle
}

// New creates a network namespace with lo up.
func New(t testing.TB) *Namespace {
	t.Helper()
	RequirePrivileges(t)
	n := &Namespace{t: t}
	onThread(t, func() {
		var err error
		if n.ns, err = netns.New(); err != nil {
			t.Errorf("make a network namespace: %v", err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Errorf("set up lo: %v", err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() { _ = n.ns.Close() })
	return n
}

// Handle returns the open namespace; it stays open until the end of the test.
func (n *Namespace) Handle() netns.NsHandle { return n.ns }

// Do runs f on a thread inside the namespace. Goroutines that f starts are not inside. f may call t.Error, not t.Fatal.
func (n *Namespace) Do(f func()) {
	n.t.Helper()
	onThread(n.t, func() {
		if err := netns.Set(n.ns); err != nil {
			n.t.Errorf("enter the network namespace: %v", err)
			return
		}
		f()
	})
	if n.t.Failed() {
		n.t.FailNow()
	}
}

// Enter moves the calling goroutine's thread into the namespace for the rest of the test, and locks the goroutine to it. The thread exits with the goroutine.
func (n *Namespace) Enter() {
	n.t.Helper()
	runtime.LockOSThread()
	if err := netns.Set(n.ns); err != nil {
		n.t.Fatalf("enter the network namespace: %v", err)
	}
}

// onThread runs f on a thread that exits afterwards, so that no other goroutine runs in its namespace.
func onThread(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			t.Errorf("unshare the file-system view of the thread: %v", err)
			return
		}
		f()
	}()
	<-done
}
