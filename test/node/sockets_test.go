package node_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedSockets_AccessRights: the group of the API's socket may connect to it, and only root may connect to the shell.
func TestPrivilegedSockets_AccessRights(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	for name, want := range map[string]os.FileMode{"waggle.sock": 0o660, "monitor1_2.sock": 0o660, "shell.sock": 0o600} {
		info, err := os.Stat(filepath.Join(node.StateDir(), name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", name, info, err, want)
		}
	}

	const group, other = 54321, 54322
	if err := os.Chmod(node.Dir, 0o755); err != nil { // the temporary folder around the node's files
		t.Fatal(err)
	}
	for _, name := range []string{"waggle.sock", "shell.sock"} { // as the agent does when there is a group waggle
		if err := os.Chown(filepath.Join(node.StateDir(), name), 0, group); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		gid    int
		socket string
		want   error
	}{
		{"a member of the group", group, "waggle.sock", nil},
		{"another user", other, "waggle.sock", unix.EACCES},
		{"a member of the group", group, "shell.sock", unix.EACCES},
	} {
		err := node.Do(func() error { return connectAs(c.gid, filepath.Join(node.StateDir(), c.socket)) })
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s at %s: %v, want %v", c.name, c.socket, err, c.want)
		}
	}
}

// connectAs connects as an ordinary user of a group. It changes the credentials of the calling thread permanently: the caller must end the thread.
func connectAs(gid int, socket string) error {
	for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
		{unix.SYS_SETRESUID, 54321, 54321, 54321}} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return fmt.Errorf("become an ordinary user: %w", errno)
		}
	}
	conn, err := net.Dial("unix", socket)
	if err == nil {
		err = conn.Close()
	}
	return err
}
