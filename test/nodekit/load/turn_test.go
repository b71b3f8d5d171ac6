package load

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// A second load starts after the end of the first one. Another process observes the lock as well, inside other namespaces.
func TestPrivilegedStart_OneLoadAtATime(t *testing.T) {
	t.Parallel()
	first, second := pair(t), pair(t)
	little := Rates{Connections: 2, Messages: 10, Datagrams: 10, Connects: 2}
	l := StartFor(t, little, paths(first), nil)
	if exit := (*exec.ExitError)(nil); !errors.As(exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "flock", "--nonblock", "/", "true").Run(), &exit) || exit.ExitCode() != 1 {
		t.Errorf("another process, in namespaces of its own, may generate load: %v", exit)
	}
	begun := make(chan *Load, 1)
	go func() {
		defer close(begun)
		l, err := Start(little, paths(second), nil)
		if err != nil {
			t.Error(err)
			return
		}
		begun <- l
	}()
	select {
	case <-begun:
		t.Error("a second load began beside the first")
	case <-time.After(300 * time.Millisecond):
	}
	if _, err := l.Stop(); err != nil {
		t.Error(err)
	}
	// Loads of other test programs may come first.
	if l := <-begun; l != nil {
		if _, err := l.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// A load whose test fails before stopping it does not block the loads of other tests.
func TestPrivilegedStartFor_EndsWithTheTest(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	var l *Load
	t.Run("forgets its load", func(t *testing.T) {
		l = StartFor(t, Rates{Connections: 2, Messages: 10, Datagrams: 10, Connects: 2}, paths(pair(t)), nil)
	})
	select {
	case <-l.stop:
	default:
		t.Error("the load goes on")
	}
	if err := l.turn.root.Close(); err == nil {
		t.Error("the load has kept its turn")
	}
}

// A load starts after the end of a test that holds its own turn and floods with it.
func TestPrivilegedTakeTurn_EndsWithTheTest(t *testing.T) {
	t.Parallel()
	bare := pair(t)
	begun := make(chan *Load, 1)
	t.Run("forgets its turn", func(t *testing.T) {
		turn := TakeTurn(t)
		go func() {
			defer close(begun)
			if l, err := Start(Rates{Connections: 2, Messages: 10, Datagrams: 10, Connects: 2}, paths(bare), nil); err == nil {
				begun <- l
			}
		}()
		for sent := 0; sent == 0; { // a test without a CPU sends nothing
			ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
			n, err := turn.Flood(ctx, bare.Client(), "eth0", 1000, [][]byte{make([]byte, 60)})
			stop()
			if err != nil {
				t.Fatal(err)
			}
			sent = n
		}
		if len(begun) > 0 {
			t.Error("a load began beside the flood")
		}
	})
	l := <-begun
	if l == nil {
		t.Fatal("no load began after the flood")
	}
	if _, err := l.Stop(); err != nil {
		t.Error(err)
	}
}
