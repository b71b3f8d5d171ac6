package maps

import (
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// flowRun is one run of an agent with one map of flows. Its keys and values are numbers.
type flowRun struct {
	t   *testing.T
	s   *store
	all map[string]*ebpf.Map // the maps that programs are loaded with
}

func startFlowRun(t *testing.T, dir string, entries uint32) flowRun {
	t.Helper()
	db := statedb.New()
	table, err := bpfmaps.NewTable(db)
	if err != nil {
		t.Error(err)
	}
	flows := &ebpf.MapSpec{Name: bpf.MapCtEst4, Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: entries}
	state := &ebpf.MapSpec{Name: bpf.MapResizeState, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	s := &store{dir: dir, params: params{Kernel: realKernel{}, Log: slog.New(slog.DiscardHandler), DB: db, Table: table,
		Specs: specs{bpf.MapCtEst4: {flows, 1, nil}, bpf.MapResizeState: {state, 1, nil}}}}
	if err := s.unpinUnknown(); err != nil {
		t.Error(err)
	}
	s.open = map[string]opened{}
	for _, name := range s.names() {
		s.open[name] = s.openMap(s.Specs[name])
	}
	s.beginResize(s.open)
	all, err := s.All()
	if err != nil {
		t.Error(err)
	}
	return flowRun{t, s, all}
}

func (r flowRun) present() *ebpf.Map  { return r.all[bpf.MapCtEst4] }
func (r flowRun) previous() *ebpf.Map { return r.all[bpf.PreviousName(bpf.MapCtEst4)] }

// begin creates an entry as a program does in the given phase.
func (r flowRun) begin(number uint32, phase bpf.ResizePhase, key uint32) {
	r.t.Helper()
	r.wantState(number, phase)
	var err error
	if phase != bpf.ResizeNone {
		err = r.previous().Put(key, key)
	}
	if phase != bpf.ResizeBefore {
		err = errors.Join(err, r.present().Put(key, key))
	}
	if err != nil {
		r.t.Error(err)
	}
}

func (r flowRun) wantState(number uint32, phase bpf.ResizePhase) {
	r.t.Helper()
	value, err := realKernel{}.ResizeState(r.all[bpf.MapResizeState])
	if n, p := bpf.ReadResizeState(value); err != nil || n != number || p != phase {
		r.t.Errorf("change %d is in phase %d, want change %d in phase %d: %v", n, p, number, phase, err)
	}
}

func (r flowRun) end() {
	r.t.Helper()
	if err := r.s.stop(nil); err != nil {
		r.t.Error(err)
	}
}

// An agent may be killed at any step of a change of size, and the next run may have another size configured: no entry is lost.
func TestPrivilegedFlows_KilledRuns_LoseNoEntry(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		r := startFlowRun(t, dir, 8)
		r.begin(0, bpf.ResizeNone, 1)
		r.end()

		r = startFlowRun(t, dir, 16)
		r.begin(1, bpf.ResizeBefore, 2)
		r.end() // before hooks are replaced

		r = startFlowRun(t, dir, 32)
		wantPins(t, dir, "ct_est4_next_v1", "ct_est4_v1", "resize_state_v1")
		r.begin(1, bpf.ResizeBefore, 3)
		if entries, err := (realKernel{}).Count(r.present()); entries != 0 || err != nil {
			t.Errorf("the present map has %d entries before any program may use it: %v", entries, err)
		}
		if err := r.s.setPhase(r.s.resize, bpf.ResizeDuring); err != nil {
			t.Error(err)
		}
		r.begin(1, bpf.ResizeDuring, 4)
		r.end() // before entries are copied

		r = startFlowRun(t, dir, 64)
		wantPins(t, dir, "ct_est4_next_v1", "ct_est4_v1", "resize_state_v1")
		want(t, dir, "ct_est4_v1", map[uint32]uint32{1: 1, 2: 2, 3: 3, 4: 4})
		if size := r.previous().MaxEntries(); size != 32 {
			t.Errorf("the map has %d entries, want those of the change that was not ended", size)
		}
		r.begin(2, bpf.ResizeBefore, 5)
		if err := r.s.setPhase(r.s.resize, bpf.ResizeDuring); err != nil {
			t.Error(err)
		}
		r.begin(2, bpf.ResizeDuring, 7)
		if err := r.s.Each(bpf.MapCtEst4, func(m *ebpf.Map) error { return m.Delete(uint32(7)) }); err != nil {
			t.Error(err) // the collector deletes the entry in both maps
		}
		if err := r.s.endResize(t.Context()); err != nil {
			t.Error(err)
		}
		r.wantState(2, bpf.ResizeNone)
		wantPins(t, dir, "ct_est4_v1", "resize_state_v1")
		want(t, dir, "ct_est4_v1", map[uint32]uint32{1: 1, 2: 2, 3: 3, 4: 4, 5: 5})
		if m, err := r.s.Get(bpf.MapCtEst4); err != nil || m.MaxEntries() != 64 {
			t.Errorf("cells get %s: %v", m, err)
		}
		r.end()

		r = startFlowRun(t, dir, 64)
		if row := r.s.open[bpf.MapCtEst4].row; row.Note != "" || row.Shadow != "" || !row.Reused {
			t.Errorf("a map of the size that is configured: %+v", row)
		}
		r.begin(2, bpf.ResizeNone, 6)
		r.end()

		r = startFlowRun(t, dir, 4) // more entries than fit
		if row := r.s.open[bpf.MapCtEst4].row; row.Note == "" || row.MaxEntries != 64 || r.present() != r.previous() {
			t.Errorf("a map that holds more entries than are configured: %+v", row)
		}
		r.wantState(2, bpf.ResizeNone)
		r.end()
	})
}

// Programs create and delete flows in both maps while their entries are copied: afterwards each map has every flow that still exists, with the last stored
// value. With few keys and short rounds, many rounds end while a just deleted or replaced entry is being copied, and no further copy follows.
func TestPrivilegedMigrate_ProgramsWriteBothMaps(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	const keys, programs = 8, 2
	random := testseed.New(t)
	for round := range 500 {
		from, to := numbersOf(t, ebpf.Hash, keys), numbersOf(t, ebpf.Hash, 2*keys)
		ended := make(chan error)
		var all [programs]*program
		for i := range all {
			p := &program{random: rand.New(rand.NewPCG(random.Uint64(), 0)), from: from, to: to, stored: map[uint32]uint32{}}
			for k := uint32(i); k < keys; k += programs {
				p.stored[k] = 1000 + k
				if err := from.Put(k, p.stored[k]); err != nil {
					t.Fatal(err)
				}
			}
			all[i] = p
		}
		for _, p := range all {
			go func() { ended <- p.run() }()
		}
		var err error
		for running, copied := programs, false; running > 0 || !copied; { // on a busy machine, all programs may have ended before the first copy
			select {
			case e := <-ended:
				running--
				err = errors.Join(err, e)
			default:
				err, copied = errors.Join(err, migrate(to, from)), true
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			for k, want := range p.stored {
				for name, m := range map[string]*ebpf.Map{"former": from, "present": to} {
					var got uint32
					if err := unlessAbsent(m.Lookup(k, &got)); err != nil || got != want {
						t.Fatalf("round %d: entry %d of the %s map is %d, want %d (0: none): %v", round, k, name, got, want, err)
					}
				}
			}
		}
		_, _ = from.Close(), to.Close()
	}
}

// Entries that do not fit cause another error than entries that cannot be copied for another reason, and all other entries are copied.
func TestPrivilegedMigrate_MapFull(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	from, to := numbersOf(t, ebpf.Hash, 4), numbersOf(t, ebpf.Hash, 2)
	for k := range uint32(4) {
		if err := from.Put(k, k); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrate(to, from); !errors.Is(err, unix.E2BIG) {
		t.Errorf("a map that is too small: %v", err)
	}
	if n, err := (realKernel{}).Count(to); n != 2 || err != nil {
		t.Errorf("%d entries are copied, want 2: %v", n, err)
	}
}

// program performs on some keys the operations of programs during a change (resize_update and resize_delete in bpf/lib/resize.h).
type program struct {
	random   *rand.Rand
	from, to *ebpf.Map
	stored   map[uint32]uint32 // values of its keys, 0 for none; without keys whose last write failed, which the present map may have
}

func (p *program) run() error {
	keys := slices.Sorted(maps.Keys(p.stored))
	var errs []error
	for value := range uint32(50) {
		value += 1
		k := keys[p.random.IntN(len(keys))]
		if p.random.IntN(2) == 0 {
			errs = append(errs, unlessAbsent(p.from.Delete(k)), unlessAbsent(p.to.Delete(k)))
			p.stored[k] = 0
			continue
		}
		if err := p.from.Update(k, value, ebpf.UpdateNoExist); err != nil {
			errs = append(errs, unlessExists(err))
			continue
		}
		if err := p.to.Update(k, value, ebpf.UpdateNoExist); err != nil {
			errs = append(errs, unlessExists(err), p.from.Delete(k))
			delete(p.stored, k)
			continue
		}
		p.stored[k] = value
	}
	return errors.Join(errs...)
}
