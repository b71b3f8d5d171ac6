package endpointmaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			driftledger.Cell,
			cell.Module("inputs", "Tables that other cells write",
				cell.Provide(newInputs, statedb.RWTable[*endpoints.Endpoint].ToTable, statedb.RWTable[*endpointpolicies.EndpointPolicy].ToTable,
					statedb.RWTable[*localnode.LocalNode].ToTable),
			),
			cell.Module("endpoint-maps", "Under test",
				cell.ProvidePrivate(newFake, func(f *fakeMaps) kernel { return f.kernel() }),
				implementation,
				cell.Provide(commands),
			),
		}
	})
}

// newInputs creates the input tables, each with one initializer, and a command that completes them.
func newInputs(db *statedb.DB) (
	eps statedb.RWTable[*endpoints.Endpoint], node statedb.RWTable[*localnode.LocalNode],
	of statedb.RWTable[*endpointpolicies.EndpointPolicy], cmd upstream.ScriptCmdOut, err error,
) {
	if eps, err = endpoints.NewTable(db); err != nil {
		return
	}
	if node, err = localnode.NewTable(db); err != nil {
		return
	}
	if of, err = endpointpolicies.NewTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(eps, node, of)
	defer txn.Commit()
	a, b, c := eps.RegisterInitializer(txn, "test"), node.RegisterInitializer(txn, "test"), of.RegisterInitializer(txn, "test")
	cmd = upstream.NewScriptCmd("inputs/complete", script.Command(script.CmdUsage{Summary: "Complete the inputs"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(eps, node, of)
			defer txn.Commit()
			a(txn)
			b(txn)
			c(txn)
			return nil, nil
		}))
	return
}

// fakeMaps stores the content of the maps in memory, and fails as many times as requested.
type fakeMaps struct {
	mu        sync.Mutex
	facts     map[uint16]bpf.EndpointFacts
	links     map[uint32]uint16
	addresses map[netip.Addr]bpf.EndpointRef
	failures  int
	writes    int
}

func newFake() *fakeMaps {
	return &fakeMaps{facts: map[uint16]bpf.EndpointFacts{}, links: map[uint32]uint16{}, addresses: map[netip.Addr]bpf.EndpointRef{}}
}

func (f *fakeMaps) kernel() kernel {
	return kernel{facts: fakeSlots{f}, links: fakeEntries[uint32, uint16]{f, f.links},
		addresses: fakeEntries[netip.Addr, bpf.EndpointRef]{f, f.addresses}}
}

// write applies a change unless a failure was requested.
func (f *fakeMaps) write(change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 {
		f.failures--
		return errors.New("no memory, says the test")
	}
	f.writes++
	change()
	return nil
}

type fakeSlots struct{ f *fakeMaps }

func (s fakeSlots) Get(id uint16) (bpf.EndpointFacts, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.f.facts[id], nil
}

func (s fakeSlots) Put(list []slot) error {
	return s.f.write(func() {
		for _, v := range list {
			s.f.facts[v.id] = v.facts
		}
	})
}

func (s fakeSlots) Dump() (map[uint16]bpf.EndpointFacts, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	used := maps.Clone(s.f.facts)
	maps.DeleteFunc(used, func(_ uint16, v bpf.EndpointFacts) bool { return v.Ifindex == 0 })
	return used, nil
}

type fakeEntries[K comparable, V any] struct {
	f *fakeMaps
	m map[K]V
}

func (e fakeEntries[K, V]) Put(k K, v V) error { return e.f.write(func() { e.m[k] = v }) }
func (e fakeEntries[K, V]) Delete(k K) error   { return e.f.write(func() { delete(e.m, k) }) }

func (e fakeEntries[K, V]) Dump() (map[K]V, error) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	return maps.Clone(e.m), nil
}

// show prints all entries, sorted, one per line.
func (f *fakeMaps) show() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for id, v := range f.facts {
		lines = append(lines, fmt.Sprintf("slot %d: ifindex=%d revision=%d identity=%d flags=%d ipv4=%s gateway=%s", id,
			v.Ifindex, v.Revision, v.Identity, v.Flags, bpf.IPv4OfWord(v.Ipv4), bpf.IPv4OfWord(v.GatewayIpv4)))
	}
	for k, v := range f.links {
		lines = append(lines, fmt.Sprintf("link %d: %d", k, v))
	}
	for k, v := range f.addresses {
		lines = append(lines, fmt.Sprintf("address %s: id=%d flags=%d", k, v.Id, v.Flags))
	}
	slices.Sort(lines)
	return strings.Join(append(lines, ""), "\n")
}

// commands provides script commands that print and change the fake, and that replace the cells that use this one.
func commands(f *fakeMaps, w bpfendpoints.HostWriter, v *verifier) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) {
				if err != nil {
					return out, err.Error(), err
				}
				return out, "", nil
			}, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/show": simple("Show the maps", func(...string) (string, error) { return f.show(), nil }),
		"kernel/writes": simple("Count writes", func(...string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return strconv.Itoa(f.writes) + "\n", nil
		}),
		"kernel/fail": simple("Let the next n writes fail", func(args ...string) (string, error) {
			n, err := strconv.Atoi(args[0])
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failures = n
			return "", err
		}),
		"kernel/leave": simple("Put what an earlier run left: id ifindex address", func(args ...string) (string, error) {
			id, err1 := strconv.ParseUint(args[0], 10, 16)
			ifindex, err2 := strconv.ParseUint(args[1], 10, 32)
			addr, err3 := netip.ParseAddr(args[2])
			return "", errors.Join(err1, err2, err3, f.write(func() {
				f.facts[uint16(id)] = bpf.EndpointFacts{Id: uint16(id), Ifindex: uint32(ifindex), Revision: 41}
				f.links[uint32(ifindex)] = uint16(id)
				f.addresses[addr] = bpf.EndpointRef{Id: uint32(id)}
			}))
		}),
		"kernel/clear": simple("Clear the maps as another program", func(...string) (string, error) {
			return "", f.write(func() { clear(f.facts); clear(f.links); clear(f.addresses) })
		}),
		"hosts/replace": simple("Replace the node's addresses: owner address...", func(args ...string) (string, error) {
			var addrs []netip.Addr
			for _, a := range args[1:] {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			return "", w.ReplaceHost(args[0], addrs)
		}),
		"verify": simple("Run the verify job now", func(...string) (string, error) { return "", v.run(context.Background()) }),
	})
}
