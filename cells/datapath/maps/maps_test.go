package maps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", cellsOf(testSpecs))
}

// Scripts with maps of flows.
func TestScripts_Flows(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/flows/*.txtar", cellsOf(flowSpecs))
}

// Scripts in which jobs wait, with virtual time.
func TestScripts_Waits(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/waits/*.txtar", cellsOf(flowSpecs))
}

func cellsOf(newSpecs func() specs) func(testing.TB) []cell.Cell {
	return func(testing.TB) []cell.Cell {
		fake := &fakeKernel{pins: map[string]*ebpf.MapSpec{}, open: map[*ebpf.Map]*ebpf.MapSpec{}, fail: map[string]int{}, removed: make(chan struct{})}
		return []cell.Cell{
			agentconfig.Cell,
			driftledger.Cell,
			cell.Module("loader", "Who replaces the programs",
				cell.Provide(attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable)),
			cell.Module("maps", "Under test",
				cell.ProvidePrivate(func() kernel { return fake }, newSpecs),
				implementation,
				cell.Provide(fake.commands),
			),
		}
	}
}

// flowSpecs returns two maps of flows and resize_state.
func flowSpecs() specs {
	hash := func(name string, key, value uint32) layout {
		return layout{&ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: key, ValueSize: value, MaxEntries: 1000}, 1, nil}
	}
	return specs{
		bpf.MapCtEst4: hash(bpf.MapCtEst4, 16, 56), bpf.MapNat4: hash(bpf.MapNat4, 16, 40),
		bpf.MapResizeState: {&ebpf.MapSpec{Name: bpf.MapResizeState, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}, 1, nil},
	}
}

// testSpecs returns two maps, so that scripts are short. endpoint_facts had another layout in the previous release.
func testSpecs() specs {
	previous := &bpf.PreviousLayout{Version: 1, Spec: &ebpf.MapSpec{Name: "endpoint_facts", Type: ebpf.Array, KeySize: 4, ValueSize: 72,
		MaxEntries: 4096}}
	return specs{
		"endpoint_facts": {&ebpf.MapSpec{Name: "endpoint_facts", Type: ebpf.Array, KeySize: 4, ValueSize: 76, MaxEntries: 4096}, 2, previous},
		"metrics":        {&ebpf.MapSpec{Name: "metrics", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 768}, 1, nil},
	}
}

// fakeKernel is a kernel that stores pins in memory.
type fakeKernel struct {
	mu      sync.Mutex
	pins    map[string]*ebpf.MapSpec // by path
	open    map[*ebpf.Map]*ebpf.MapSpec
	fail    map[string]int // number of further calls that fail, by call
	log     []string
	noMount bool
	removed chan struct{}
	state   uint32 // of bpf.MapResizeState
	entries uint32 // of each map
}

func (f *fakeKernel) Watch(string) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-f.removed:
		case <-ctx.Done():
		}
		return nil
	}
}

func (f *fakeKernel) injectedError(call string) error {
	if f.fail[call] == 0 {
		return nil
	}
	f.fail[call]--
	return fmt.Errorf("%s: %w", call, unix.ENOMEM)
}

func (f *fakeKernel) note(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fakeKernel) handle(spec *ebpf.MapSpec) *ebpf.Map {
	m := &ebpf.Map{}
	f.open[m] = spec
	return m
}

func (f *fakeKernel) Prepare(root, _ string) error {
	if f.noMount {
		return fmt.Errorf("mount BPF file system on %s: refused by the test", root)
	}
	return nil
}

func (f *fakeKernel) Open(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	have, found := f.pins[path]
	if !found {
		return nil, os.ErrNotExist
	}
	if have.ValueSize != spec.ValueSize {
		return nil, fmt.Errorf("open pinned map %s: value size %d: %w", path, have.ValueSize, errUnfit)
	}
	return f.handle(have), nil
}

func (f *fakeKernel) Create(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.injectedError("create"); err != nil {
		return nil, err
	}
	return f.handle(spec), nil
}

func (f *fakeKernel) OpenAny(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	m, err := f.Open(spec, path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errUnfit) {
		return nil, nil
	}
	return m, err
}

func (f *fakeKernel) Migrate(to, from *ebpf.Map) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("migrate %s to %d entries from %d", f.open[to].Name, f.open[to].MaxEntries, f.open[from].MaxEntries)
	return f.injectedError("migrate")
}

func (f *fakeKernel) Count(*ebpf.Map) (uint32, error) { return f.entries, nil }

func (f *fakeKernel) ResizeState(*ebpf.Map) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.injectedError("state")
}

func (f *fakeKernel) SetResizeState(_ *ebpf.Map, value uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	number, phase := bpf.ReadResizeState(value)
	if err := errors.Join(f.injectedError("phase"), f.injectedError(fmt.Sprint("phase-", phase))); err != nil {
		return err
	}
	f.state = value
	f.note("change %d phase %d", number, phase)
	return nil
}

func (f *fakeKernel) AwaitPackets() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("await packets")
	return f.injectedError("await")
}

func (f *fakeKernel) Exchange(_, _ *ebpf.Map, _ keyHashes) error { return nil }

func (f *fakeKernel) Fill(to, from *ebpf.Map, _ convert) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("fill %s of %d bytes and %d entries from %d bytes and %d entries", f.open[to].Name, f.open[to].ValueSize,
		f.open[to].MaxEntries, f.open[from].ValueSize, f.open[from].MaxEntries)
	return f.injectedError("fill")
}

func (f *fakeKernel) Pin(m *ebpf.Map, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins[path] = f.open[m]
	return nil
}

func (f *fakeKernel) Mark(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins[path] = nil
	return f.injectedError("mark")
}

func (f *fakeKernel) Move(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins[to] = f.pins[from]
	delete(f.pins, from)
	return f.injectedError("move")
}

func (f *fakeKernel) Unpin(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pins, path)
	return nil
}

func (f *fakeKernel) Pins(string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for path := range f.pins {
		names = append(names, filepath.Base(path))
	}
	return names, nil
}

func (f *fakeKernel) Size(m *ebpf.Map) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open[m].MaxEntries
}

func (f *fakeKernel) Memory(*ebpf.Map) uint64 { return 4096 }

func (f *fakeKernel) Dump(_ *ebpf.Map, spec *ebpf.MapSpec) ([]dumped, error) {
	return []dumped{{Key: "9", Value: "b"}, {Key: "10", Value: spec.Name}}, nil
}

func (f *fakeKernel) Close(m *ebpf.Map) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, m)
	return nil
}

func (f *fakeKernel) commands(m pinnedmaps.Maps, db *statedb.DB, table statedb.RWTable[*attachments.Attachment]) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/pin": simple("Pin a map: path, bytes of a value, entries", func(a ...string) (string, error) {
			bytes, err1 := strconv.Atoi(a[1])
			entries, err2 := strconv.Atoi(a[2])
			f.pins[a[0]] = &ebpf.MapSpec{Name: "pinned", ValueSize: uint32(bytes), MaxEntries: uint32(entries)}
			return "", errors.Join(err1, err2)
		}),
		"kernel/unpin": simple("Remove pins, which the kernel announces: path...", func(a ...string) (string, error) {
			for _, path := range a {
				delete(f.pins, path)
			}
			f.removed <- struct{}{}
			return "", nil
		}),
		"kernel/fail": simple("Refuse a call so many times", func(a ...string) (_ string, err error) {
			f.fail[a[0]], err = strconv.Atoi(a[1])
			return "", err
		}),
		"kernel/resize": simple("Set the number and the phase of a change of size", func(a ...string) (string, error) {
			number, err1 := strconv.ParseUint(a[0], 10, 30)
			phase, err2 := strconv.ParseUint(a[1], 10, 2)
			f.state = bpf.ResizeState(uint32(number), bpf.ResizePhase(phase))
			return "", errors.Join(err1, err2)
		}),
		"kernel/entries": simple("Set how many entries each map holds", func(a ...string) (string, error) {
			n, err := strconv.ParseUint(a[0], 10, 32)
			f.entries = uint32(n)
			return "", err
		}),
		"kernel/no-mount": simple("Refuse to mount", func(...string) (string, error) { f.noMount = true; return "", nil }),
		"kernel/log": simple("What was copied", func(...string) (string, error) {
			return strings.Join(append(slices.Clone(f.log), ""), "\n"), nil
		}),
		"kernel/pins": simple("List pins and the number of open maps", func(...string) (string, error) {
			return strings.Join(slices.Sorted(maps.Keys(f.pins)), "\n") + fmt.Sprintf("\nopen %d\n", len(f.open)), nil
		}),
		"hooks/replaced": simple("All hooks run this generation", func(...string) (string, error) {
			txn := db.WriteTxn(table)
			defer txn.Commit()
			for _, a := range []attachments.Attachment{{Kind: attachments.Block, Hook: "ingress"}, {Kind: attachments.Block, Hook: "egress"},
				{Kind: attachments.TCX, Device: "waggle_host", Hook: "egress"}} {
				a.ProgramID, a.Status = 7, reconciler.StatusDone()
				_, _, _ = table.Insert(txn, &a)
			}
			return "", nil
		}),
		"maps/programs": script.Command(script.CmdUsage{Summary: "List the maps for programs and their sizes"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				all, err := m.All()
				var out strings.Builder
				for _, name := range slices.Sorted(maps.Keys(all)) {
					fmt.Fprintln(&out, name, f.Size(all[name]))
				}
				return func(*script.State) (string, string, error) { return out.String(), "", err }, nil
			}),
		"maps/get": script.Command(script.CmdUsage{Summary: "Ask for a map, as other cells do", Args: "name"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				_, err := m.Get(args[0])
				return nil, err
			}),
	})
}

// inPrivateBPFFS runs f on a thread with its own BPF file system, which the kernel removes with the thread.
func inPrivateBPFFS(t *testing.T, f func(root string)) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "bpf")
	testnet.New(t).Do(func() {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Errorf("get mounts of our own: %v", err)
			return
		}
		f(root)
	})
}

// Maps without a pin are created before they are opened. One that cannot be created then, or is not opened, does no harm.
func TestCreateMissing(t *testing.T) {
	t.Parallel()
	fake := &fakeKernel{pins: map[string]*ebpf.MapSpec{}, open: map[*ebpf.Map]*ebpf.MapSpec{}, fail: map[string]int{}}
	all := flowSpecs()
	state := all[bpf.MapResizeState]
	s := &store{params: params{Kernel: fake, Specs: all}, dir: "/bpf"}
	fake.pins[s.pin(state.Name, state.Version)] = state.MapSpec

	s.createMissing()
	if len(fake.open) != 2 || s.created[bpf.MapResizeState] != nil {
		t.Errorf("%d maps are created, want those of flows: %v", len(fake.open), s.created)
	}
	want := s.created[bpf.MapCtEst4]
	if m, err := s.create(all[bpf.MapCtEst4]); m != want || err != nil {
		t.Errorf("got %p and error %v, want the created map %p", m, err, want)
	}
	s.closeCreated()
	if _, open := fake.open[want]; len(fake.open) != 1 || !open {
		t.Errorf("%d maps are open, want only the one that was taken", len(fake.open))
	}
	if m, err := s.create(all[bpf.MapNat4]); m == nil || err != nil || len(fake.open) != 2 {
		t.Errorf("after the start: map %p, error %v", m, err)
	}

	fake.fail["create"] = 2
	s.createMissing()
	if m, err := s.create(all[bpf.MapNat4]); len(s.created) != 0 || m == nil || err != nil {
		t.Errorf("after both attempts failed: %v; the next attempt: map %p, error %v", s.created, m, err)
	}
}
