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

	"github.com/waggle-net/waggle/pkg/testnet"
)

// The BPF file system sends notifications of removals.
func TestPrivilegedWatch_ReportsRemovedPins(t *testing.T) {
	testnet.RequirePrivileges(t)
	root := filepath.Join(t.TempDir(), "bpf")
	inMountNamespace(t, func() {
		if _, err := Ensure(root); err != nil {
			t.Error(err)
			return
		}
		if err := watch(t, filepath.Join(root, "pins")); err != nil {
			t.Error(err)
		}
	})
}

func watch(t *testing.T, dir string) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	w := NewWatch(dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, tc := range []struct {
		what string
		do   func() error
	}{
		{"the directory created", func() error { return nil }},
		{"a pin", func() error { return errors.Join(m.Pin(filepath.Join(dir, "a")), os.Remove(filepath.Join(dir, "a"))) }},
		{"the directory removed", func() error { return os.Remove(dir) }},
		{"the directory created again", func() error { return nil }},
	} {
		if err := tc.do(); err != nil {
			return err
		}
		if err := w.Next(ctx); err != nil || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", tc.what, errors.Join(err, ctx.Err()))
		}
	}
	quiet, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Next(quiet); err != nil || quiet.Err() == nil {
		return fmt.Errorf("told of something, or failed: %v", err)
	}
	return nil
}
