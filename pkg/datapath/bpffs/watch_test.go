package bpffs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// The BPF file system sends notifications of removals, and the kernel one of the unmount.
func TestPrivilegedWatch_ReportsRemovedPinsAndUnmount(t *testing.T) {
	testnet.RequirePrivileges(t)
	root := filepath.Join(t.TempDir(), "bpf")
	inMountNamespace(t, func() {
		if _, err := Ensure(root); err != nil {
			t.Error(err)
			return
		}
		if err := watch(t, root); err != nil {
			t.Error(err)
		}
	})
}

func watch(t *testing.T, root string) error {
	dir := filepath.Join(root, "pins")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	nothing := func() error { return nil }
	pinAndRemove := func() error { return errors.Join(m.Pin(filepath.Join(dir, "a")), m.Unpin()) }
	w := NewWatch(dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, tc := range []struct {
		what string
		do   func() error
		want error
	}{
		{"the directory created", nothing, nil},
		{"a pin", pinAndRemove, nil},
		{"the directory removed", func() error { return os.Remove(dir) }, nil},
		{"the directory created again", nothing, nil},
		{"the file system unmounted", func() error { return unix.Unmount(root, 0) }, nil},
		{"not mounted", nothing, errNotMounted},
		{"mounted again", func() error { _, err := Ensure(root); return err }, nil},
		{"a pin in the new file system", pinAndRemove, nil},
	} {
		if err := tc.do(); err != nil {
			return err
		}
		if err := w.Next(ctx); !errors.Is(err, tc.want) || ctx.Err() != nil {
			return fmt.Errorf("%s: %v, want %v", tc.what, errors.Join(err, ctx.Err()), tc.want)
		}
	}
	quiet, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Next(quiet); err != nil || quiet.Err() == nil {
		return fmt.Errorf("told of something, or failed: %v", err)
	}
	return nil
}
