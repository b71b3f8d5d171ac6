package agentlock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestTake_NamesOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), AgentFile)
	f, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if _, err := Take(path); !errors.As(err, &held) || held.PID != os.Getpid() || held.Path != path {
		t.Errorf("a second lock: %v", err)
	}
	f.Close()
	if f, err = Take(path); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := errors.Join(os.Remove(path), os.Symlink("/dev/null", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func TestPrivilegedAnnounce_OneNamespace(t *testing.T) {
	t.Parallel()
	there, elsewhere := testnet.New(t), testnet.New(t)
	there.Do(func() {
		if _, running := Announced(); running {
			t.Error("an agent is announced in a new namespace")
		}
		a, err := Announce()
		if err != nil {
			t.Error(err)
			return
		}
		var held *HeldError
		if _, err := Announce(); !errors.As(err, &held) || held.PID != os.Getpid() {
			t.Errorf("a second agent: %v", err)
		}
		if pid, running := Announced(); !running || pid != os.Getpid() {
			t.Errorf("announced: %v, pid %d", running, pid)
		}
		a.Close()
		if _, running := Announced(); running {
			t.Error("announced after its end")
		}
	})
	elsewhere.Do(func() {
		if _, running := Announced(); running {
			t.Error("an agent of another namespace is announced")
		}
	})
}

// A process of another user takes the name, and does not prevent the start of the agent.
func TestPrivilegedAnnounce_NameOfAnotherUser(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		seteuid := func(id int) error { // of this thread only, unlike syscall.Seteuid
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
				return errno
			}
			return nil
		}
		const otherUID = 65534
		if err := seteuid(otherUID); err != nil {
			t.Error(err)
			return
		}
		l, err := net.Listen("unix", address)
		if err := errors.Join(err, seteuid(0)); err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		if owner, err := announced(); err != nil || owner.Uid != otherUID {
			t.Errorf("the owner is %+v, %v", owner, err)
		}
		a, err := Announce()
		if err != nil {
			t.Error(err)
			return
		}
		a.Close()
	})
}

// An agent of a previous build accepts no connection. After many calls the backlog of its socket is full, and Announced still reports an agent.
func TestPrivilegedAnnounced_AfterManyCalls(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: address}), unix.Listen(fd, 1)); err != nil {
			t.Error(err)
			return
		}
		for i := range 4 {
			if _, running := Announced(); !running {
				t.Errorf("no agent runs, says the answer to question %d", i)
			}
		}
	})
}
