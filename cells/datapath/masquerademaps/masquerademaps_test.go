package masquerademaps

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
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			driftledger.Cell,
			agentconfig.Cell,
			cell.Module("inputs", "Tables that other cells write",
				cell.Provide(newInputs, statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[nodeaddresses.Address].ToTable,
					statedb.RWTable[*localnode.LocalNode].ToTable, statedb.RWTable[*nodes.Node].ToTable, statedb.RWTable[masquerade.IPMasq].ToTable),
			),
			cell.Module("masquerade", "Under test",
				cell.Config(DefaultConfig),
				cell.ProvidePrivate(newFake, (*fake).kernel),
				implementation,
				cell.Provide(commands),
			),
		}
	})
}

// newInputs creates the input tables, and a command that completes the named tables, or all.
func newInputs(db *statedb.DB) (
	links statedb.RWTable[*devices.Device], addrs statedb.RWTable[nodeaddresses.Address], node statedb.RWTable[*localnode.LocalNode],
	all statedb.RWTable[*nodes.Node], file statedb.RWTable[masquerade.IPMasq], cmd upstream.ScriptCmdOut, err error,
) {
	var errs [5]error
	links, errs[0] = devices.NewTable(db)
	addrs, errs[1] = nodeaddresses.NewTable(db)
	node, errs[2] = localnode.NewTable(db)
	file, errs[3] = masquerade.NewIPMasqTable(db)
	all, errs[4] = nodes.NewTable(db)
	if err = errors.Join(errs[:]...); err != nil {
		return
	}
	txn := db.WriteTxn(links, addrs, node, all, file)
	defer txn.Commit()
	done := map[string]func(statedb.WriteTxn){
		links.Name(): links.RegisterInitializer(txn, "test"), addrs.Name(): addrs.RegisterInitializer(txn, "test"),
		node.Name(): node.RegisterInitializer(txn, "test"), all.Name(): all.RegisterInitializer(txn, "test"), file.Name(): file.RegisterInitializer(txn, "test"),
	}
	cmd = upstream.NewScriptCmd("inputs/complete", script.Command(script.CmdUsage{Summary: "Complete the inputs", Args: "[table...]"},
		func(_ *script.State, names ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(links, addrs, node, all, file)
			defer txn.Commit()
			for name, f := range done {
				if len(names) == 0 || slices.Contains(names, name) {
					f(txn)
				}
			}
			return nil, nil
		}))
	return
}

// fake has the content of the kernel's maps, and fails as often as configured.
type fake struct {
	mu         sync.Mutex
	netdevs    map[uint32]bpf.Netdev
	exclusions map[netip.Prefix]uint32
	failures   int
}

func newFake() *fake {
	return &fake{netdevs: map[uint32]bpf.Netdev{}, exclusions: map[netip.Prefix]uint32{}}
}

func (f *fake) kernel() kernel {
	return kernel{fakeEntries[uint32, bpf.Netdev]{f, f.netdevs}, fakeEntries[netip.Prefix, uint32]{f, f.exclusions}}
}

func (f *fake) write(change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 {
		f.failures--
		return errors.New("no memory, says the test")
	}
	change()
	return nil
}

func (f *fake) show() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(f.netdevs)) {
		v := f.netdevs[k]
		fmt.Fprintf(&out, "%d: %s %s flags=%d\n", k, bpf.IPv4OfWord(v.Ipv4), netip.AddrFrom16(v.Ipv6), v.Flags)
	}
	for _, k := range slices.SortedFunc(maps.Keys(f.exclusions), func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) }) {
		fmt.Fprintf(&out, "%s: %d\n", k, f.exclusions[k])
	}
	return out.String()
}

type fakeEntries[K, V comparable] struct {
	f *fake
	m map[K]V
}

func (e fakeEntries[K, V]) Put(k K, v V) error { return e.f.write(func() { e.m[k] = v }) }
func (e fakeEntries[K, V]) Delete(k K) error   { return e.f.write(func() { delete(e.m, k) }) }

func (e fakeEntries[K, V]) Dump() (map[K]V, error) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	return maps.Clone(e.m), nil
}

// commands returns script commands that show and change the fake.
func commands(f *fake, v *verifier) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/show": simple("Show the maps", func(...string) (string, error) { return f.show(), nil }),
		"kernel/fail": simple("Let the next n writes fail", func(args ...string) (string, error) {
			n, err := strconv.Atoi(args[0])
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failures = n
			return "", err
		}),
		"kernel/put": simple("Put foreign entries: ifindex prefix", func(args ...string) (string, error) {
			n, err := strconv.ParseUint(args[0], 10, 32)
			p, err2 := netip.ParsePrefix(args[1])
			return "", errors.Join(err, err2, f.write(func() { f.netdevs[uint32(n)] = bpf.Netdev{}; f.exclusions[p] = 1 }))
		}),
		"kernel/clear": simple("Lose everything", func(...string) (string, error) {
			return "", f.write(func() { clear(f.netdevs); clear(f.exclusions) })
		}),
		"verify": simple("Run the verify job now", func(...string) (string, error) { return "", v.run(context.Background()) }),
	})
}

func TestNewRules_NamesTheFlag(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"--ipv4-native-routing-cidr": {IPv4NativeRoutingCIDR: "fd00::/8"},
		"--ipv6-native-routing-cidr": {IPv6NativeRoutingCIDR: "10.0.0.0/8"},
		"--masquerade-exclude-cidrs": {MasqueradeExcludeCIDRs: []string{"10.0.0.0/8", "10.0.0.1"}},
	} {
		if _, err := newRules(c, agentconfig.Agent{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}
