package maps

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// wide is the layout of a hash table in one release; keys are numbers, values are numbers of valueSize bytes.
func wide(version, valueSize, entries uint32) layout {
	return layout{&ebpf.MapSpec{Name: "numbers", Type: ebpf.Hash, KeySize: 4, ValueSize: valueSize, MaxEntries: entries}, version, nil}
}

// release2 has values of 8 bytes in units of one; release 1 has values of 4 bytes in units of ten.
func release2() layout {
	l := wide(2, 8, 16)
	l.Former = &bpf.PreviousLayout{Version: 1, Spec: wide(1, 4, 16).MapSpec,
		Forward: func(k, v []byte) ([]byte, []byte, bool) {
			return k, binary.NativeEndian.AppendUint64(nil, uint64(binary.NativeEndian.Uint32(v))*10), true
		},
		Back: func(k, v []byte) ([]byte, []byte, bool) {
			return k, binary.NativeEndian.AppendUint32(nil, uint32(binary.NativeEndian.Uint64(v)/10)), true
		}}
	return l
}

// run is one run of an agent with a single map.
type run struct {
	t *testing.T
	s *store
}

func startRun(t *testing.T, dir string, l layout) run {
	t.Helper()
	db := statedb.New()
	table, err := bpfmaps.NewTable(db)
	if err != nil {
		t.Error(err)
	}
	s := &store{params: params{Kernel: realKernel{}, Log: slog.New(slog.DiscardHandler), Specs: specs{"numbers": l}, DB: db, Table: table}, dir: dir}
	if err := s.unpinUnknown(); err != nil {
		t.Error(err)
	}
	s.open = map[string]opened{"numbers": s.openMap(l)}
	return run{t, s}
}

func (r run) note() string { return r.s.open["numbers"].row.Note }

func (r run) put(k uint32, v any) {
	r.t.Helper()
	if err := r.s.Put("numbers", k, v); err != nil {
		r.t.Error(err)
	}
}

// end closes the maps, as the kernel does when a process is killed.
func (r run) end() {
	r.t.Helper()
	if err := r.s.stop(nil); err != nil {
		r.t.Error(err)
	}
}

// want compares the entries of a pinned map with entries.
func want[V comparable](t *testing.T, dir, pin string, entries map[uint32]V) {
	t.Helper()
	wantKeys(t, dir, pin, entries)
}

func wantKeys[K, V comparable](t *testing.T, dir, pin string, entries map[K]V) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, pin), nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer m.Close()
	var (
		k    K
		v    V
		have = 0
		all  = m.Iterate()
	)
	for all.Next(&k, &v) {
		have++
		if w, found := entries[k]; !found || w != v {
			t.Errorf("%s: %v is %v, want %v", pin, k, v, w)
		}
	}
	if err := all.Err(); err != nil || have != len(entries) {
		t.Errorf("%s has %d entries, want %d: %v", pin, have, len(entries), err)
	}
}

func wantPins(t *testing.T, dir string, names ...string) {
	t.Helper()
	have, err := realKernel{}.Pins(dir)
	if slices.Sort(have); err != nil || !slices.Equal(have, names) {
		t.Errorf("pinned are %q, want %q (%v)", have, names, err)
	}
}

func inMapDir(t *testing.T, f func(dir string)) {
	t.Helper()
	inPrivateBPFFS(t, func(root string) {
		dir := filepath.Join(root, "waggle", "maps")
		if err := (realKernel{}).Prepare(root, dir); err != nil {
			t.Error(err)
			return
		}
		f(dir)
	})
}

func TestPrivilegedOpen_ReusesCompatibleMap(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		r := startRun(t, dir, wide(1, 4, 8))
		r.put(1, uint32(2))
		if row := r.s.open["numbers"].row; row.Reused || row.Memory == 0 {
			t.Errorf("the first run: %+v", row)
		}
		r.end()
		r = startRun(t, dir, wide(1, 4, 8))
		entries, err := r.s.Entries("numbers")
		if err != nil || len(entries) != 1 || entries[0] != (dumped{Key: "01000000", Value: "02000000"}) {
			t.Errorf("the contents are %v, error %v", entries, err)
		}
		if row := r.s.open["numbers"].row; !row.Reused || !row.Filled || row.Note != "" {
			t.Errorf("the second run: %+v", row)
		}
		if err := r.s.Delete("numbers", uint32(9)); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("delete what is not there: %v", err)
		}
		r.end()
	})
}

// A release changes the layout. Programs of both releases find all entries in their own map, whichever agent wrote the entries, also after a temporary
// downgrade to the previous release.
func TestPrivilegedLayout_UpgradeAndDowngrade(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		r := startRun(t, dir, wide(1, 4, 16))
		r.put(1, uint32(5))
		r.end()

		for range 2 { // in the second round both maps exist
			r = startRun(t, dir, release2())
			if row := r.s.open["numbers"].row; !row.Filled || row.Twin == "" || row.Error != "" {
				t.Errorf("the upgrade: %+v", row)
			}
			want(t, dir, "numbers_v2", map[uint32]uint64{1: 50})
			r.put(2, uint64(60))
			want(t, dir, "numbers_v2", map[uint32]uint64{1: 50, 2: 60})
			want(t, dir, "numbers_v1", map[uint32]uint32{1: 5, 2: 6})
			if err := r.s.Delete("numbers", uint32(2)); err != nil {
				t.Error(err)
			}
			want(t, dir, "numbers_v1", map[uint32]uint32{1: 5})
			r.end()
		}

		r = startRun(t, dir, wide(1, 4, 16)) // the downgrade finds a current map
		wantPins(t, dir, "numbers_v1")
		r.put(3, uint32(7))
		r.end()

		r = startRun(t, dir, release2())
		want(t, dir, "numbers_v2", map[uint32]uint64{1: 50, 3: 70})
		r.end()

		if err := os.Remove(filepath.Join(dir, "numbers_v1")); err != nil { // by any other program
			t.Error(err)
		}
		r = startRun(t, dir, release2())
		want(t, dir, "numbers_v1", map[uint32]uint32{1: 5, 3: 7})
		r.end()

		r = startRun(t, dir, wide(2, 8, 16)) // the next release does not know the former layout
		wantPins(t, dir, "numbers_v2")
		r.end()
	})
}

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
				if time.Since(begin) > 15*time.Second { // wall clock; the loop polls for the entry
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

// Any other object at the pin of a map is moved to another name, and the map is created again.
func TestPrivilegedOpen_ForeignPin_IsQuarantined(t *testing.T) {
	t.Parallel()
	for name, pin := range map[string]func(path string) error{
		"a map of another type": func(path string) error { return pinMap(ebpf.Array, 4, path) },
		"another value":         func(path string) error { return pinMap(ebpf.Hash, 8, path) },
		"a directory":           func(path string) error { return os.Mkdir(path, 0o700) },
		"a program":             pinProgram,
		"a symbolic link":       func(path string) error { return os.Symlink("/dev/null", path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inMapDir(t, func(dir string) {
				if err := pin(filepath.Join(dir, "numbers_v1")); err != nil {
					t.Error(err)
					return
				}
				r := startRun(t, dir, wide(1, 4, 8))
				r.put(1, uint32(5))
				want(t, dir, "numbers_v1", map[uint32]uint32{1: 5})
				wantPins(t, dir, "numbers_v1", "numbers_v1_unfit")
				if row := r.s.open["numbers"].row; row.Note == "" || row.Filled == (row.Owner == "endpoint-maps") {
					t.Errorf("the row is %+v", row)
				}
				r.end()
			})
		})
	}
}

func pinMap(kind ebpf.MapType, valueSize uint32, path string) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: valueSize, MaxEntries: 8})
	if err != nil {
		return err
	}
	return errors.Join(m.Pin(path), m.Close())
}

func pinProgram(path string) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return err
	}
	return errors.Join(p.Pin(path), p.Close())
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

func TestPrivilegedOpen_AllMapsOfThePrograms(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		all, err := newSpecs(DefaultConfig, agentconfig.Agent{})
		if err != nil {
			t.Error(err)
			return
		}
		for round := range 2 {
			s := &store{params: params{Kernel: realKernel{}, Log: slog.New(slog.DiscardHandler), Specs: all}, dir: dir,
				open: map[string]opened{}}
			for _, name := range s.names() {
				o := s.openMap(all[name])
				s.open[name] = o
				if o.err != nil || o.row.Reused != (round == 1) || o.row.Note != "" {
					t.Errorf("round %d: open %s: %+v", round, name, o.row)
					continue
				}
				// Every kernel reports the memory of an array; package bpf tests the memory budget of all maps.
				if name == bpf.MapMetrics && o.row.Memory == 0 {
					t.Errorf("round %d: %s takes no memory", round, name)
				}
				if _, err := s.Entries(name); err != nil {
					t.Errorf("dump %s: %v", name, err)
				}
			}
			if err := s.stop(nil); err != nil {
				t.Error(err)
			}
		}
	})
}
