package nodemaps

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			agentconfig.Cell, driftledger.Cell,
			cell.Module("inputs", "Tables that other cells write", cell.Provide(
				newInputs, statedb.RWTable[*nodes.Node].ToTable, statedb.RWTable[*nodeids.NodeID].ToTable, statedb.RWTable[*overlays.Overlay].ToTable,
				statedb.RWTable[*pathtests.Test].ToTable, bpfmaps.NewTable, statedb.RWTable[*bpfmaps.Map].ToTable, statedb.RWTable[*nodepaths.Path].ToTable, statedb.RWTable[*devices.Device].ToTable, newProbe)),
			cell.Module("node-maps", "Under test",
				cell.ProvidePrivate(newFake, func(f *fakeKernel) kernel { return f }),
				implementation,
				cell.Provide((*fakeKernel).commands)),
		}
	})
}

// newProbe returns the probe of a kernel with all capabilities.
func newProbe(a agentconfig.Agent) bpf.EncapProbe {
	return func() (s bpf.EncapSupport) {
		if !a.KubeProxyReplacement {
			s.Stack = errors.New("kube-proxy")
		}
		return s
	}
}

// inputs are tables that a script completes.
type inputs struct {
	cell.Out
	Nodes    statedb.RWTable[*nodes.Node]
	IDs      statedb.RWTable[*nodeids.NodeID]
	Overlays statedb.RWTable[*overlays.Overlay]
	Tests    statedb.RWTable[*pathtests.Test]
	Paths    statedb.RWTable[*nodepaths.Path]
	Devices  statedb.RWTable[*devices.Device]
	Complete hive.ScriptCmdOut
}

func newInputs(db *statedb.DB) (in inputs, err error) {
	var errs [6]error
	in.Nodes, errs[0] = nodes.NewTable(db)
	in.IDs, errs[1] = nodeids.NewTable(db)
	in.Overlays, errs[2] = overlays.NewTable(db)
	in.Tests, errs[3] = pathtests.NewTable(db)
	in.Paths, errs[4] = nodepaths.NewTable(db)
	in.Devices, errs[5] = devices.NewTable(db)
	if err := errors.Join(errs[:]...); err != nil {
		return in, err
	}
	tables := []statedb.TableMeta{in.Nodes, in.IDs, in.Overlays, in.Tests, in.Devices}
	txn := db.WriteTxn(tables...)
	defer txn.Commit()
	done := []func(statedb.WriteTxn){in.Nodes.RegisterInitializer(txn, "test"), in.IDs.RegisterInitializer(txn, "test"),
		in.Overlays.RegisterInitializer(txn, "test"), in.Tests.RegisterInitializer(txn, "test"), in.Devices.RegisterInitializer(txn, "test")}
	in.Complete = hive.NewScriptCmd("inputs/complete", script.Command(script.CmdUsage{Summary: "Complete all inputs"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(tables...)
			defer txn.Commit()
			for _, d := range done {
				d(txn)
			}
			return nil, nil
		}))
	return in, nil
}

// fakeKernel is a [kernel] in memory, which fails as often as configured, and lists its writes.
type fakeKernel struct {
	mu       sync.Mutex
	slots    map[uint16]bpf.Node
	addrs    map[netip.Addr]uint16
	writes   []string
	failures int
}

func newFake() *fakeKernel {
	return &fakeKernel{slots: map[uint16]bpf.Node{}, addrs: map[netip.Addr]uint16{}}
}

var errFull = errors.New("full")

func (f *fakeKernel) write(what string, change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 {
		f.failures--
		return errFull
	}
	f.writes = append(f.writes, what)
	change()
	return nil
}

func (f *fakeKernel) PutSlot(id uint16, slot bpf.Node) error {
	return f.write(fmt.Sprintf("slot %d", id), func() {
		if f.slots[id] = slot; slot == (bpf.Node{}) {
			delete(f.slots, id)
		}
	})
}

func (f *fakeKernel) PutAddr(addr netip.Addr, id uint16) error {
	return f.write(fmt.Sprintf("add %s", addr), func() { f.addrs[addr] = id })
}

func (f *fakeKernel) DeleteAddr(addr netip.Addr) error {
	return f.write(fmt.Sprintf("delete %s", addr), func() { delete(f.addrs, addr) })
}

func (f *fakeKernel) Dump() (map[uint16]state, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[uint16]state{}
	for id, slot := range f.slots {
		all[id] = state{slot: slot}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare) {
		s := all[f.addrs[addr]]
		s.addrs = append(s.addrs, addr)
		all[f.addrs[addr]] = s
	}
	return all, nil
}

// show prints one line for each id.
func (f *fakeKernel) show() string {
	all, _ := f.Dump()
	var out strings.Builder
	for _, id := range slices.Sorted(maps.Keys(all)) {
		s := all[id]
		fmt.Fprint(&out, id)
		if s.slot.Mode == bpf.NodeDirect {
			fmt.Fprint(&out, " direct")
		}
		if s.slot.Family != 0 {
			fmt.Fprint(&out, " to ", bpf.AddrOf(bpf.AddrKey{Family: s.slot.Family, Addr: s.slot.Underlay}), " from ",
				bpf.AddrOf(bpf.AddrKey{Family: s.slot.Family, Addr: s.slot.UnderlaySource}))
		}
		if s.slot.Ifindex > 0 {
			fmt.Fprint(&out, " checksums by ", s.slot.Ifindex)
		}
		if s.slot.Flags&bpf.NodeRouted != 0 {
			fmt.Fprint(&out, " routed")
		}
		if s.slot.Mtu > 0 {
			fmt.Fprint(&out, " mtu ", s.slot.Mtu)
		}
		fmt.Fprintln(&out, " owns", s.addrs)
	}
	return out.String()
}

func (f *fakeKernel) commands() hive.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	return hive.NewScriptCmds(map[string]script.Cmd{
		"kernel": simple("Show the maps", func(...string) (string, error) { return f.show(), nil }),
		"kernel/writes": simple("Show the writes since the last call", func(...string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			out := strings.Join(f.writes, "\n") + "\n"
			f.writes = nil
			return out, nil
		}),
		"kernel/own": simple("Give an address to an id: address id", func(args ...string) (string, error) {
			id, err := strconv.ParseUint(args[1], 10, 16)
			return "", errors.Join(err, f.PutAddr(netip.MustParseAddr(args[0]), uint16(id)))
		}),
		"kernel/direct": simple("Let a slot say that routes lead to the node: id", func(args ...string) (string, error) {
			id, err := strconv.ParseUint(args[0], 10, 16)
			return "", errors.Join(err, f.PutSlot(uint16(id), bpf.Node{Mode: bpf.NodeDirect}))
		}),
		"kernel/routed": simple("Let a slot say that routes lead to the node beside a tunnel: id", func(args ...string) (string, error) {
			id, err := strconv.ParseUint(args[0], 10, 16)
			return "", errors.Join(err, f.PutSlot(uint16(id), bpf.Node{Mode: bpf.NodeDirect, Flags: bpf.NodeRouted}))
		}),
		"kernel/slot": simple("Give a slot an address, and a device that completes checksums: id address [ifindex]", func(args ...string) (string, error) {
			id, err := strconv.ParseUint(args[0], 10, 16)
			key := bpf.NewAddrKey(netip.MustParseAddr(args[1]))
			slot := bpf.Node{Family: key.Family, Underlay: key.Addr}
			if len(args) > 2 {
				index, bad := strconv.ParseUint(args[2], 10, 32)
				slot.Ifindex, err = uint32(index), errors.Join(err, bad)
			}
			return "", errors.Join(err, f.PutSlot(uint16(id), slot))
		}),
		"kernel/fail": simple("Let the next n writes fail", func(args ...string) (string, error) {
			n, err := strconv.Atoi(args[0])
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failures = n
			return "", err
		}),
	})
}
