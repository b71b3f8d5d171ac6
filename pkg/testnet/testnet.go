// Package testnet gives tests network namespaces of their own.
package testnet

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// MachineEnv names the environment variable that stands for what tests of the kernel depend on outside the tree: the kernel, the
// number of CPUs, the installed Debian packages.
const MachineEnv = "WAGGLE_MACHINE"

// UsesMachine tells Go's test cache that the result depends on the machine: a result from before counts only while [MachineEnv] has
// the same value.
func UsesMachine() { _ = os.Getenv(MachineEnv) }

// RequirePrivileges skips the test unless it runs as root, and says what would un-skip it.
func RequirePrivileges(t testing.TB) {
	t.Helper()
	UsesMachine()
	if os.Geteuid() != 0 {
		t.Skip("needs root with CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_BPF: run the tests as root")
	}
}

// Missing skips the test where the machine lacks something that a developer may do without. With CI=true the test fails instead:
// the machine that decides must be able to run it.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Namespace is a network namespace that ends with the test.
type Namespace struct {
	t  testing.TB
	ns netns.NsHandle
}

// New makes a network namespace with its loopback up.
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

// Handle is the open namespace; it stays open until the test ends.
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

// Enter moves the calling goroutine's thread into the namespace for the rest of the test, and locks it there. The
// thread is discarded when the goroutine ends.
func (n *Namespace) Enter() {
	n.t.Helper()
	runtime.LockOSThread()
	if err := netns.Set(n.ns); err != nil {
		n.t.Fatalf("enter the network namespace: %v", err)
	}
}

// onThread runs f on a thread that is thrown away afterwards, so that no other goroutine ever meets its namespace.
func onThread(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			t.Errorf("give the thread its own file-system view: %v", err)
			return
		}
		f()
	}()
	<-done
}
