package maps

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
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
			t.Errorf("delete a missing entry: %v", err)
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
			if row := r.s.open["numbers"].row; !row.Filled || row.Shadow == "" || row.Error != "" {
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
