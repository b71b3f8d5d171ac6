package maps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
)

func TestPrivilegedResize(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		r := startRun(t, dir, wide(1, 4, 3))
		r.put(1, uint32(5))
		r.end()
		for range 2 { // the run that enlarges the map ends before the hooks are replaced
			r = startRun(t, dir, wide(1, 4, 8))
			r.put(2, uint32(6))
			for _, pin := range []string{"numbers_v1", "numbers_v1_resized"} {
				want(t, dir, pin, map[uint32]uint32{1: 5, 2: 6})
			}
			r.end()
		}
		for _, size := range []uint32{16, 3} { // a third size while hooks may read the first map: that map stays current
			r = startRun(t, dir, wide(1, 4, size))
			r.put(1, size)
			for _, pin := range []string{"numbers_v1", "numbers_v1_resized"} {
				want(t, dir, pin, map[uint32]uint32{1: size, 2: 6})
			}
			if row := r.s.open["numbers"].row; row.MaxEntries != 8 || !strings.Contains(row.Note, "it keeps its size of 8 entries") {
				t.Errorf("nothing says that the map kept its size: %+v", row)
			}
			r.put(1, uint32(5))
			r.end()
		}
		// A crash between the two steps of the replacement.
		if err := os.Remove(filepath.Join(dir, "numbers_v1")); err != nil {
			t.Error(err)
		}
		r = startRun(t, dir, wide(1, 4, 8))
		want(t, dir, "numbers_v1", map[uint32]uint32{1: 5, 2: 6})
		// A program of the previous generation continues to write to its map until its hook is replaced.
		previous := r.s.open["numbers"].shadow.m
		if err := errors.Join(previous.Delete(uint32(1)), previous.Put(uint32(3), uint32(7)), previous.Put(uint32(2), uint32(9))); err != nil {
			t.Error(err)
		}
		// An entry that a cell deletes in both maps is not restored.
		if err := errors.Join(r.s.Put("numbers", uint32(4), uint32(8)), r.s.Each("numbers", func(m *ebpf.Map) error { return m.Delete(uint32(4)) })); err != nil {
			t.Error(err)
		}
		if err := r.s.dropShadows(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, dir, "numbers_v1", map[uint32]uint32{1: 5, 2: 6, 3: 7})
		wantPins(t, dir, "numbers_v1")
		for k := range uint32(8) {
			r.put(k, k)
		}
		r.end()

		r = startRun(t, dir, wide(1, 4, 2)) // more entries than fit: the map keeps its size and stays usable
		if m, err := r.s.Get("numbers"); err != nil || m.MaxEntries() != 8 {
			t.Errorf("the map that is too full for its new size: %v, %v", m, err)
		}
		if r.note() == "" || r.s.open["numbers"].row.MaxEntries != 8 {
			t.Errorf("nothing says that the map kept its size: %+v", r.s.open["numbers"].row)
		}
		wantPins(t, dir, "numbers_v1")
		r.end()
	})
}

// While hooks are being replaced, an entry that a program of one generation creates in its map is copied to the map of the other generation within moments.
func TestPrivilegedResize_HookReplacement_CopiesNewEntries(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		r := startRun(t, dir, wide(1, 4, 4))
		r.end()
		r = startRun(t, dir, wide(1, 4, 8))
		defer r.end()
		hooks, err := attachments.NewTable(r.s.DB)
		if err != nil {
			t.Error(err)
			return
		}
		r.s.Attachments = hooks
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.s.dropResized(ctx, nil) }()
		defer func() { stop(); <-ended }()
		present, previous := r.s.open["numbers"].m, r.s.open["numbers"].shadow.m
		for k := range uint32(4) {
			from, to := previous, present
			if k == 3 {
				from, to = present, previous
			}
			if err := from.Put(k, k+5); err != nil {
				t.Error(err)
			}
			if k == 2 { // an entry that a program of this generation deletes is not restored
				if err := present.Delete(uint32(1)); err != nil {
					t.Error(err)
				}
			}
			for begin := time.Now(); to.Lookup(k, new(uint32)) != nil; time.Sleep(time.Millisecond) {
				if time.Since(begin) > time.Minute { // wall clock; the loop polls for the entry
					t.Errorf("entry %d does not come", k)
					return
				}
			}
		}
		if err := present.Lookup(uint32(1), new(uint32)); err == nil {
			t.Error("the entry that was deleted has come back")
		}
	})
}

// Tables with more entries than one batch are exchanged completely, also while programs delete entries.
func TestPrivilegedExchange_ManyEntries(t *testing.T) {
	t.Parallel()
	const each = copyBatch + copyBatch/2
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		a, b := numbersOf(t, kind, 8*each), numbersOf(t, kind, 16*each)
		for k := range uint32(each) {
			if err := errors.Join(a.Put(k, k), b.Put(each+k, k)); err != nil {
				t.Fatal(err)
			}
		}
		before := make(keyHashes)
		if err := exchange(b, a, before); err != nil {
			t.Error(err)
		}
		for _, m := range []*ebpf.Map{a, b} {
			for k := range uint32(2 * each) {
				if err := m.Lookup(k, new(uint32)); err != nil {
					t.Fatalf("%s: entry %d: %v", m, k, err)
				}
			}
		}
		deleted := make(chan error)
		go func() { // programs delete entries of one table
			var err error
			for k := range uint32(each) {
				err = errors.Join(err, a.Delete(k))
			}
			deleted <- err
		}()
		if err := a.Put(uint32(2*each), uint32(1)); err != nil {
			t.Error(err)
		}
		if err := errors.Join(exchange(b, a, before), <-deleted, exchange(b, a, before)); err != nil {
			t.Error(err)
		}
		if err := b.Lookup(uint32(2*each), new(uint32)); err != nil {
			t.Errorf("%s: the new entry: %v", b, err)
		}
		for k := range uint32(each) {
			if err := a.Lookup(k, new(uint32)); err == nil {
				t.Fatalf("%s: the deleted entry %d has come back", a, k)
			}
		}
	}
}

func numbersOf(tb testing.TB, kind ebpf.MapType, entries uint32) *ebpf.Map {
	tb.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 4, MaxEntries: entries})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = m.Close() })
	return m
}

// BenchmarkExchange_524288Flows measures an exchange of a full map of translated flows whose entries have all been seen.
func BenchmarkExchange_524288Flows(b *testing.B) {
	all, err := bpf.MapSpecs()
	if err != nil {
		b.Fatal(err)
	}
	spec := all[bpf.MapNat4]
	spec.Pinning = ebpf.PinNone
	var both [2]*ebpf.Map
	for i := range both {
		if both[i], err = ebpf.NewMap(spec); err != nil {
			b.Fatal(err)
		}
		defer both[i].Close()
		for at := uint32(0); at < bpf.NatMax; at += copyBatch {
			keys, values := make([]bpf.NatKey4, copyBatch), make([]bpf.NatEntry4, copyBatch)
			for i := range keys {
				keys[i].Saddr = at + uint32(i)
			}
			if _, err := both[i].BatchUpdate(keys, values, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	before := make(keyHashes)
	for b.Loop() {
		if err := exchange(both[0], both[1], before); err != nil {
			b.Fatal(err)
		}
	}
}

// If the kernel cannot create the map, the map of another size stays in use.
func TestPrivilegedResize_WithoutMemoryKeepsTheMap(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		r := startRun(t, dir, wide(1, 4, 8))
		r.put(1, uint32(5))
		r.end()
		r = startRun(t, dir, wide(1, 4, 1<<31)) // more than any machine has
		if r.note() == "" {
			t.Error("nothing says that the map kept its size")
		}
		r.put(2, uint32(6))
		want(t, dir, "numbers_v1", map[uint32]uint32{1: 5, 2: 6})
		r.end()
	})
}
