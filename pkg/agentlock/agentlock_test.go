package agentlock

import (
	"errors"
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
		a, second := Announce(), Announce()
		defer second.Close()
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

// The agent accepts no connection. After many calls the backlog of its socket is full, and Announced still reports an agent.
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
