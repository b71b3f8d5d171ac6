package maps

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		fake := &fakeKernel{pins: map[string]*ebpf.MapSpec{}}
		return []cell.Cell{
			settings.Cell,
			cell.Module("maps", "Under test",
				cell.ProvidePrivate(func() kernel { return fake }, testSpecs),
				implementation,
				cell.Provide(fake.commands),
			),
		}
	})
}

// testSpecs are two maps, so that scripts are short.
func testSpecs() specs {
	return specs{
		"endpoint_facts": {Name: "endpoint_facts", Type: ebpf.Array, KeySize: 4, ValueSize: 76, MaxEntries: 4096},
		"metrics":        {Name: "metrics", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 768},
	}
}

// fakeKernel remembers what is pinned.
type fakeKernel struct {
	pins    map[string]*ebpf.MapSpec // by path
	noMount bool
	open    int
}

func (f *fakeKernel) Prepare(root, _ string) error {
	if f.noMount {
		return fmt.Errorf("mount BPF file system on %s: refused by the test", root)
	}
	return nil
}

func (f *fakeKernel) Open(spec *ebpf.MapSpec, path string) (*ebpf.Map, bool, error) {
	have, found := f.pins[path]
	if found && have.ValueSize != spec.ValueSize {
		return nil, false, fmt.Errorf("value size %d: %w", have.ValueSize, ebpf.ErrMapIncompatible)
	}
	f.pins[path] = spec
	f.open++
	return &ebpf.Map{}, found, nil
}

func (f *fakeKernel) Memory(*ebpf.Map) uint64 { return 4096 }

func (f *fakeKernel) Dump(_ *ebpf.Map, spec *ebpf.MapSpec) ([]dumped, error) {
	return []dumped{{Key: "9", Value: "b"}, {Key: "10", Value: spec.Name}}, nil
}

func (f *fakeKernel) Close(*ebpf.Map) error { f.open--; return nil }

func (f *fakeKernel) commands(m bpfmaps.Maps) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/pin": script.Command(script.CmdUsage{Summary: "Pin a map with a value of one byte", Args: "path"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				f.pins[args[0]] = &ebpf.MapSpec{Name: "foreign", ValueSize: 1}
				return nil, nil
			}),
		"kernel/no-mount": script.Command(script.CmdUsage{Summary: "Refuse to mount"},
			func(*script.State, ...string) (script.WaitFunc, error) { f.noMount = true; return nil, nil }),
		"kernel/pins": script.Command(script.CmdUsage{Summary: "List pins and the number of open maps"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				lines := slices.Sorted(maps.Keys(f.pins))
				text := strings.Join(lines, "\n") + fmt.Sprintf("\nopen %d\n", f.open)
				return func(*script.State) (string, string, error) { return text, "", nil }, nil
			}),
		"maps/get": script.Command(script.CmdUsage{Summary: "Ask for a map, as other cells do", Args: "name"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				_, err := m.Get(args[0])
				return nil, err
			}),
	})
}

// inPrivateBPFFS runs f on a thread with a BPF file system of its own, which ends with the thread.
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

func TestPrivilegedOpen_ReusesWhatFitsAndKeepsWhatDoesNot(t *testing.T) {
	t.Parallel()
	inPrivateBPFFS(t, func(root string) {
		k, dir := realKernel{}, filepath.Join(root, "waggle", "maps")
		if err := k.Prepare(root, dir); err != nil {
			t.Error(err)
			return
		}
		path := filepath.Join(dir, "m_v1")
		spec := &ebpf.MapSpec{Name: "m", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 8}
		first, reused, err := k.Open(spec, path)
		if err != nil || reused {
			t.Errorf("first: reused %v, error %v", reused, err)
			return
		}
		if err := first.Put(uint32(1), uint32(2)); err != nil {
			t.Error(err)
		}
		if k.Memory(first) == 0 {
			t.Error("the kernel charges nothing for a map")
		}
		_ = k.Close(first)

		second, reused, err := k.Open(spec, path)
		if err != nil || !reused {
			t.Errorf("second: reused %v, error %v", reused, err)
			return
		}
		entries, err := k.Dump(second, spec)
		if err != nil || len(entries) != 1 || entries[0] != (dumped{Key: "01000000", Value: "02000000"}) {
			t.Errorf("the contents are %v, error %v", entries, err)
		}
		_ = k.Close(second)

		bigger := spec.Copy()
		bigger.MaxEntries = 16
		if _, _, err := k.Open(bigger, path); !errors.Is(err, ebpf.ErrMapIncompatible) {
			t.Errorf("another size: %v, want %v", err, ebpf.ErrMapIncompatible)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the pin that did not fit is gone: %v", err)
		}
	})
}

func TestPrivilegedOpen_AllMapsOfThePrograms(t *testing.T) {
	t.Parallel()
	inPrivateBPFFS(t, func(root string) {
		k, dir := realKernel{}, filepath.Join(root, "waggle", "maps")
		all, err := newSpecs()
		if err != nil || k.Prepare(root, dir) != nil {
			t.Errorf("prepare: %v", err)
			return
		}
		var memory uint64
		for round := range 2 {
			for name, spec := range all {
				m, reused, err := k.Open(spec, filepath.Join(dir, name+layout))
				if err != nil || reused != (round == 1) {
					t.Errorf("round %d: open %s: reused %v, error %v", round, name, reused, err)
					continue
				}
				memory += k.Memory(m)
				if _, err := k.Dump(m, spec); err != nil {
					t.Errorf("dump %s: %v", name, err)
				}
				_ = k.Close(m)
			}
		}
		if budget := uint64(2 * 60 << 20); memory > budget {
			t.Errorf("the maps take %d bytes in two rounds, more than %d", memory, budget)
		}
	})
}
