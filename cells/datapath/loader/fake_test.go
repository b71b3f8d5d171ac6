package loader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/podmtus"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", cells(socketlboptions.Options{}))
}

// Scripts with services at the socket.
func TestScripts_Sockets(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/sockets/*.txtar", cells(socketlboptions.Options{Enabled: true, Cgroup: "/group"}))
}

func cells(o socketlboptions.Options) func(testing.TB) []cell.Cell {
	return func(testing.TB) []cell.Cell {
		return []cell.Cell{
			driftledger.Cell,
			cell.Provide(func() socketlboptions.Options { return o }),
			cell.Module("inputs", "Tables that other cells write",
				cell.Provide(
					newInputs, bpfmaps.NewTable, newIpcache, nodeslots.NewTable, statedb.RWTable[*nodeslots.Slot].ToTable, bpfendpoints.NewFactsTable, bpfendpoints.NewLinkTable, bpfendpoints.NewAddressTable,
					statedb.RWTable[*endpoints.Endpoint].ToTable, statedb.RWTable[*devices.Device].ToTable,
					statedb.RWTable[*bpfendpoints.Facts].ToTable, statedb.RWTable[*bpfendpoints.Link].ToTable,
					statedb.RWTable[*bpfendpoints.Address].ToTable, statedb.RWTable[*bpfmaps.Map].ToTable,
					statedb.RWTable[*ipcache.Entry].ToTable, newFrontends, statedb.RWTable[*frontends.Frontend].ToTable,
					podmtus.NewTable, statedb.RWTable[podmtus.PodMTU].ToTable,
					sources.NewTable, statedb.RWTable[sources.Source].ToTable,
				),
			),
			cell.Module("loader", "Under test",
				cell.ProvidePrivate(newFake, func(f *fakeKernel) kernel { return kernel{f, f, f, f} }),
				implementation,
				cell.Provide(commands),
			),
		}
	}
}

// newInputs creates the tables that decide when rows may be removed, with one initializer each.
func newInputs(db *statedb.DB) (
	eps statedb.RWTable[*endpoints.Endpoint], devs statedb.RWTable[*devices.Device], cmd upstream.ScriptCmdOut, err error,
) {
	if eps, err = endpoints.NewTable(db); err != nil {
		return
	}
	if devs, err = devices.NewTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(eps, devs)
	defer txn.Commit()
	a, b := eps.RegisterInitializer(txn, "test"), devs.RegisterInitializer(txn, "test")
	cmd = upstream.NewScriptCmd("inputs/complete", script.Command(script.CmdUsage{Summary: "Complete the inputs"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(eps, devs)
			defer txn.Commit()
			a(txn)
			b(txn)
			return nil, nil
		}))
	return
}

// newIpcache creates the table ipcache, which a script completes.
func newIpcache(db *statedb.DB) (table statedb.RWTable[*ipcache.Entry], cmd upstream.ScriptCmdOut, err error) {
	if table, err = ipcache.NewTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	done := table.RegisterInitializer(txn, "test")
	return table, upstream.NewScriptCmd("ipcache/complete", script.Command(script.CmdUsage{Summary: "Complete the table ipcache"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			defer txn.Commit()
			done(txn)
			return nil, nil
		})), nil
}

// newFrontends creates the table frontends. It is complete unless a script adds an initializer.
func newFrontends(db *statedb.DB) (statedb.RWTable[*frontends.Frontend], upstream.ScriptCmdOut, error) {
	table, err := frontends.NewTable(db)
	return table, upstream.NewScriptCmd("frontends/incomplete", script.Command(script.CmdUsage{Summary: "Let the table of frontends wait for its source"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			table.RegisterInitializer(txn, "test")
			txn.Commit()
			return nil, nil
		})), err
}

// loadErrors are the errors of loading, by the argument of kernel/no-load.
var loadErrors = map[string]error{"": errors.New("refused by the test"), "verifier": errVerifier}

// fakeKernel is a kernel in memory whose calls fail on request of a script.
type fakeKernel struct {
	mu       sync.Mutex
	loadErr  error
	fail     string // prefix of calls that fail, until a script changes it
	guard    bool
	clsacts  map[int]tc.Blocks
	up       map[string]bool
	filters  map[uint32]uint32
	attached map[string]uint32
	order    []string // calls that changed the state
	changed  chan tc.Change
	pinned   chan struct{}       // a pin was removed
	links    map[string]int      // ifindex by key of attached
	ahead    map[string][]string // by key of attached, ifindex, or "blocks"
	protocol uint32
	groups   map[string]int // ids of control groups
	loads    int            // number of successful loads
	resizing bool           // the size of maps of flows is being changed
	loadedSo bool           // the value of resizing at the last load
}

func newFake() *fakeKernel {
	return &fakeKernel{clsacts: map[int]tc.Blocks{}, up: map[string]bool{}, filters: map[uint32]uint32{}, attached: map[string]uint32{},
		changed: make(chan tc.Change), pinned: make(chan struct{}), links: map[string]int{}, ahead: map[string][]string{}, groups: map[string]int{"/group": 4711}}
}

// change runs do unless the call must fail; do reports whether it changed the state.
func (f *fakeKernel) change(call string, do func() bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != "" && strings.HasPrefix(call, f.fail) {
		return fmt.Errorf("%s: refused by the test", call)
	}
	if do() {
		f.order = append(f.order, call)
	}
	return nil
}

func (f *fakeKernel) Protocol() (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.protocol, nil
}

func (f *fakeKernel) SetProtocol(protocol uint32) error {
	return f.change(fmt.Sprintf("protocol-%d", protocol), func() bool { f.protocol = protocol; return true })
}

func (f *fakeKernel) Load() (map[string]program, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loadErr != nil {
		return nil, f.loadErr
	}
	out := make(map[string]program)
	for i, name := range append(bpf.Programs(), bpf.SockPrograms()...) {
		out[name] = program{Name: name, ID: uint32(101 + 100*f.loads + i)}
	}
	f.loads++
	f.loadedSo = f.resizing
	return out, nil
}

func (f *fakeKernel) Resizing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loadedSo
}

func (f *fakeKernel) Unload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.order = append(f.order, "unload")
}

func (f *fakeKernel) Open() error { return nil }
func (f *fakeKernel) Close()      {}

func (f *fakeKernel) Changed(ctx context.Context) ([]tc.Change, error) {
	select {
	case c := <-f.changed:
		return []tc.Change{c}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fakeKernel) RuleChanged(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeKernel) PinsChanged(ctx context.Context) error {
	select {
	case <-f.pinned:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeKernel) Ahead(ifindex int) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ahead[strconv.Itoa(ifindex)], nil
}

func (f *fakeKernel) Guard() error {
	return f.change("guard", func() bool { was := f.guard; f.guard = true; return !was })
}

func (f *fakeKernel) Hold(ifindex int) error {
	return f.change("hold", func() bool { return f.setBlocks(ifindex) })
}

func (f *fakeKernel) setBlocks(ifindex int) bool {
	was := f.clsacts[ifindex]
	f.clsacts[ifindex] = blocks()
	return was != blocks()
}

func (f *fakeKernel) SetFilter(block uint32, p *program) error {
	return f.set(fmt.Sprintf("filter-%x", block), f.filters, block, p)
}

func (f *fakeKernel) Attach(key string, at attachPoint, p *program) error {
	f.mu.Lock()
	_, found := f.attached[key]
	f.mu.Unlock()
	if p == nil && found {
		return nil
	}
	if p == nil {
		return fmt.Errorf("%s: %w", key, errNoFilter)
	}
	return f.change("attach-"+key, func() bool {
		changed := f.attached[key] != p.ID || f.links[key] != at.IfIndex || f.ahead[key] != nil
		f.attached[key], f.links[key], f.ahead[key] = p.ID, at.IfIndex, nil
		return changed
	})
}

func (f *fakeKernel) set(call string, m map[uint32]uint32, key uint32, p *program) error {
	f.mu.Lock()
	_, found := m[key]
	f.mu.Unlock()
	switch {
	case p == nil && found:
		return nil
	case p == nil:
		return fmt.Errorf("%s: %w", call, errNoFilter)
	}
	return f.change(call, func() bool { was := m[key]; m[key] = p.ID; return was != p.ID })
}

func (f *fakeKernel) Join(ifindex int, name string, mtu int) error {
	call := "join-" + name
	if mtu != 0 {
		call += fmt.Sprintf(" mtu %d", mtu)
	}
	return f.change(call, func() bool {
		changed := f.setBlocks(ifindex) || !f.up[name] || mtu != 0
		f.up[name] = true
		return changed
	})
}

func (f *fakeKernel) AttachGroup(key, group, _ string, p *program) error {
	f.mu.Lock()
	id := f.groups[group]
	f.mu.Unlock()
	return f.Attach(key, attachPoint{IfIndex: id}, p)
}

func (f *fakeKernel) Groups(groups []string) map[string]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := map[string]uint64{}
	for _, g := range groups {
		ids[g] = uint64(f.groups[g])
	}
	return ids
}

func (f *fakeKernel) Detach(key string) error {
	return f.change("detach-"+key, func() bool { _, found := f.attached[key]; delete(f.attached, key); return found })
}

func (f *fakeKernel) Attached() (map[string]attached, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]attached)
	for key, id := range f.attached {
		out[key] = attached{IfIndex: f.links[key], Group: uint64(f.links[key]), Program: id, Ahead: f.ahead[key]}
	}
	return out, nil
}

func (f *fakeKernel) Observe() (observed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return observed{Guard: f.guard, Blocks: maps.Clone(f.clsacts), Filters: maps.Clone(f.filters), Ahead: f.ahead["blocks"]}, nil
}

// commands are script commands that inspect and change the fake.
func commands(f *fakeKernel, v *verifier) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	locked := func(do func(args ...string)) func(...string) (string, error) {
		return func(args ...string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			do(args...)
			return "", nil
		}
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/order": simple("Show what was changed, in order, and forget it", func(...string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return strings.Join(append(slices.Clone(f.order), ""), "\n"), nil
		}),
		"kernel/forget":   simple("Forget the order", locked(func(...string) { f.order = nil })),
		"kernel/fail":     simple("Let a call fail; without a name none", locked(func(a ...string) { f.fail = strings.Join(a, "") })),
		"kernel/no-load":  simple("Programs do not load", locked(func(a ...string) { f.loadErr = loadErrors[strings.Join(a, "")] })),
		"kernel/resizing": simple("Give programs maps that get another size; without an argument no longer", locked(func(a ...string) { f.resizing = len(a) > 0 })),
		"kernel/load":     simple("Programs load again", locked(func(...string) { f.loadErr = nil })),
		"kernel/protocol": simple("Set the protocol as another generation would", locked(func(a ...string) {
			n, _ := strconv.Atoi(a[0])
			f.protocol = uint32(n)
		})),
		"kernel/attached": simple("Put a pinned link of an earlier run: key [ifindex]", locked(func(a ...string) {
			f.attached[a[0]] = 7
			if len(a) > 1 {
				f.links[a[0]], _ = strconv.Atoi(a[1])
			}
		})),
		"kernel/detach": simple("Detach a link by force and leave its pin", locked(func(a ...string) { f.links[a[0]] = 0 })),
		"kernel/group": simple("Make the control group anew, under this number", locked(func(a ...string) {
			f.groups["/group"], _ = strconv.Atoi(a[0])
		})),
		"kernel/ahead": simple("Put a program ahead of ours: key, ifindex or blocks, program", locked(func(a ...string) {
			f.ahead[a[0]] = a[1:]
		})),
		"kernel/unpin": simple("Remove a pin, which the kernel announces", func(a ...string) (string, error) {
			f.mu.Lock()
			delete(f.attached, a[0])
			f.mu.Unlock()
			f.pinned <- struct{}{}
			return "", nil
		}),
		"kernel/lose-filter": simple("Delete the filter of a block, which the kernel announces", func(a ...string) (string, error) {
			n, err := strconv.ParseUint(a[0], 16, 32)
			f.mu.Lock()
			delete(f.filters, uint32(n))
			f.mu.Unlock()
			f.changed <- tc.Change{Block: uint32(n)}
			return "", err
		}),
		"kernel/filters": simple("Put the filters of an earlier run", locked(func(...string) {
			for _, b := range blockRows {
				f.filters[uint32(b.IfIndex)] = 7
			}
		})),
		"kernel/lose-clsact": simple("Take the clsact off a device", locked(func(a ...string) {
			n, _ := strconv.Atoi(a[0])
			delete(f.clsacts, n)
		})),
		"kernel/announce": simple("Announce that a device has lost its clsact", func(a ...string) (string, error) {
			n, err := strconv.Atoi(a[0])
			f.changed <- tc.Change{Ifindex: n, Clsact: true}
			return "", err
		}),
		"kernel/lose-guard": simple("Delete the nftables rule", locked(func(...string) { f.guard = false })),
		"verify":            simple("Run the verify job now", func(...string) (string, error) { _, err := v.look(); return "", err }),
	})
}
