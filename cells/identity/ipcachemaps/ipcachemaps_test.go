package ipcachemaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
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
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			driftledger.Cell,
			cell.Module("inputs", "Tables that other cells write",
				cell.Provide(newInputs, statedb.RWTable[*endpoints.Endpoint].ToTable,
					endpointpolicies.NewTable, statedb.RWTable[*endpointpolicies.EndpointPolicy].ToTable,
					identities.NewTable, statedb.RWTable[*identities.Identity].ToTable,
					cilium.NewEndpointTable, statedb.RWTable[*cilium.Endpoint].ToTable,
					attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
					policyprogress.NewTable, statedb.RWTable[policyprogress.Progress].ToTable,
					newNodeIDs, statedb.RWTable[*nodeids.NodeID].ToTable,
					nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
				),
			),
			agentconfig.Cell,
			cell.Module("ipcache", "Under test",
				cell.ProvidePrivate(newFake, func(f *fakeMaps) kernel { return f }),
				implementation,
				cell.Provide(commands),
			),
		}
	})
}

func newInputs(db *statedb.DB) (eps statedb.RWTable[*endpoints.Endpoint], cmd upstream.ScriptCmdOut, err error) {
	if eps, err = endpoints.NewTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(eps)
	defer txn.Commit()
	done := eps.RegisterInitializer(txn, "test")
	cmd = upstream.NewScriptCmd("inputs/complete", script.Command(script.CmdUsage{Summary: "Complete the endpoints"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(eps)
			defer txn.Commit()
			done(txn)
			return nil, nil
		}))
	return
}

// newNodeIDs creates the table of node ids and a command that initializes it.
func newNodeIDs(db *statedb.DB) (table statedb.RWTable[*nodeids.NodeID], cmd upstream.ScriptCmdOut, err error) {
	if table, err = nodeids.NewTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	done := table.RegisterInitializer(txn, "test")
	return table, upstream.NewScriptCmd("ids/complete", script.Command(script.CmdUsage{Summary: "Complete the ids of nodes"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			defer txn.Commit()
			done(txn)
			return nil, nil
		})), nil
}

// fakeMaps stores the content of the two maps in memory, and fails as many times as requested.
type fakeMaps struct {
	mu       sync.Mutex
	entries  map[netip.Prefix]value
	peers    map[netip.Prefix]netip.Addr // IPv4 addresses for programs of the previous release
	failures int
	epoch    int            // slot 0 of epochs
	shards   map[uint32]int // shards of epochs
}

func newFake() *fakeMaps {
	return &fakeMaps{entries: map[netip.Prefix]value{}, peers: map[netip.Prefix]netip.Addr{}, shards: map[uint32]int{}}
}

func (f *fakeMaps) write(change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 {
		f.failures--
		return errors.New("full, says the test")
	}
	change()
	return nil
}

func (f *fakeMaps) Put(p netip.Prefix, v value, peer netip.Addr) error {
	return f.write(func() { f.entries[p], f.peers[p] = v, peer })
}

func (f *fakeMaps) RaiseAll() error { return f.write(func() { f.epoch++ }) }
func (f *fakeMaps) Raise(shards []uint32) error {
	return f.write(func() {
		for _, s := range shards {
			f.shards[s]++
		}
	})
}

func (f *fakeMaps) Delete(p netip.Prefix) error {
	return f.write(func() { delete(f.entries, p); delete(f.peers, p) })
}

func (f *fakeMaps) Get(p netip.Prefix) (v value, found bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, found = f.entries[p]
	return v, found, nil
}

func (f *fakeMaps) peer(p netip.Prefix) netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peers[p]
}

func (f *fakeMaps) Some(*cursor, int) (map[netip.Prefix]value, error) { return f.Dump() }

func (f *fakeMaps) Dump() (map[netip.Prefix]value, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.entries), nil
}

// commands provides script commands that print and change the fake, and that claim prefixes.
func commands(
	f *fakeMaps, w *writer, v *verifier,
) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/show": simple("Show the maps", func(...string) (string, error) {
			have, _ := f.Dump()
			var lines []string
			for p, v := range have {
				line := fmt.Sprint(p, " ", v.Identity)
				if v.Node != 0 {
					line += fmt.Sprint(" node ", v.Node)
				}
				if peer := f.peer(p); peer.IsValid() {
					line += fmt.Sprint(" formerly ", peer)
				}
				lines = append(lines, line+"\n")
			}
			slices.Sort(lines)
			return strings.Join(lines, ""), nil
		}),
		"kernel/fail": simple("Let the next n writes fail", func(args ...string) (string, error) {
			n, err := strconv.Atoi(args[0])
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failures = n
			return "", err
		}),
		"kernel/put": simple("Put an entry past the agent: prefix identity [node]", func(args ...string) (string, error) {
			id, err := strconv.ParseUint(args[1], 10, 32)
			v := value{Identity: uint32(id)}
			if len(args) > 2 {
				node, err := strconv.ParseUint(args[2], 10, 16)
				if err != nil {
					return "", err
				}
				v.Node = uint16(node)
			}
			return "", errors.Join(err, f.Put(netip.MustParsePrefix(args[0]), v, netip.Addr{}))
		}),
		"verify": simple("Run the verify job now", func(...string) (string, error) { return "", v.run(context.Background()) }),
		"claim": simple("Replace the claims of an owner: owner source [prefix=identity[@node]]...", func(args ...string) (string, error) {
			source, err := strconv.ParseUint(args[1], 10, 8)
			var claims []ipcache.Claim
			for _, arg := range args[2:] {
				prefix, id, _ := strings.Cut(arg, "=")
				id, node, _ := strings.Cut(id, "@")
				n, err := strconv.ParseUint(id, 10, 32)
				if err != nil {
					return "", err
				}
				claims = append(claims, ipcache.Claim{Prefix: netip.MustParsePrefix(prefix), Identity: uint32(n), Node: node,
					Source: ipcache.Source(source)})
			}
			if updates(args[0]) {
				w.Update(args[0], claims, nil, true)
			} else {
				w.Replace(args[0], claims, true)
			}
			return "", err
		}),
	})
}

// TestWriter_AgreesWithANaiveModel replaces and updates random sets, and compares the table with winners that are computed from all claims.
func TestWriter_AgreesWithANaiveModel(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	table, err := ipcache.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	w := newWriter(db, table)
	model := map[string][]ipcache.Claim{}
	all := []string{"a", "b", "d", "e", ipcache.OwnerEndpoints, ipcache.OwnerCiliumEndpoints}
	for range 2000 {
		owner := all[random.IntN(len(all))]
		var list []ipcache.Claim
		var rest []netip.Prefix
		for i := range 6 {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)
			switch random.IntN(3) {
			case 0:
				list = append(list, ipcache.Claim{Prefix: prefix, Identity: random.Uint32N(4),
					Node: []string{"", "x", "y"}[random.IntN(3)], Source: ipcache.Source(1 + random.IntN(4))})
			case 1:
				rest = append(rest, prefix)
			}
		}
		if complete := random.IntN(2) == 0; updates(owner) {
			w.Update(owner, list, rest, complete)
			model[owner] = slices.DeleteFunc(model[owner], func(c ipcache.Claim) bool {
				return slices.Contains(rest, c.Prefix) || slices.ContainsFunc(list, func(n ipcache.Claim) bool { return n.Prefix == c.Prefix })
			})
			model[owner] = append(model[owner], list...)
			for _, c := range model[owner] {
				if have := w.identity(owner, c.Prefix); have != c.Identity {
					t.Fatalf("%s claims %s to be %d, want %d", owner, c.Prefix, have, c.Identity)
				}
			}
		} else {
			w.Replace(owner, list, complete)
			model[owner] = list
		}
		compareWithModel(t, db, table, model)
		byNode, have := map[string]map[ipcache.Key]struct{}{}, map[string]map[ipcache.Key]struct{}{}
		for e := range table.All(db.ReadTxn()) {
			if e.Node() != "" && byNode[e.Node()] == nil {
				byNode[e.Node()] = map[ipcache.Key]struct{}{}
			}
			if e.Node() != "" {
				byNode[e.Node()][e.Key()] = struct{}{}
			}
		}
		for _, node := range w.byNode.nodes() {
			have[node] = map[ipcache.Key]struct{}{}
			for key := range w.byNode.keys(node) {
				if _, twice := have[node][key]; twice {
					t.Fatalf("node %s has the row %x twice", node, key)
				}
				have[node][key] = struct{}{}
			}
		}
		if !reflect.DeepEqual(byNode, have) {
			t.Fatalf("rows by node: have %v, want %v", have, byNode)
		}
		for _, owner := range all {
			for prefix := range w.claims[owner] {
				if row, _, found := table.Get(db.ReadTxn(), ipcache.ByPrefix(prefix)); updates(owner) && found && row.Owner() == owner {
					t.Fatalf("the claim of %s for %s is kept beside its row", owner, prefix)
				}
			}
		}
	}
}

func compareWithModel(t *testing.T, db *statedb.DB, table statedb.Table[*ipcache.Entry], model map[string][]ipcache.Claim) {
	t.Helper()
	want := map[netip.Prefix]*ipcache.Entry{}
	for _, owner := range slices.Sorted(maps.Keys(model)) { // in this order a later owner must have a higher source to win
		for _, c := range model[owner] {
			if have, found := want[c.Prefix]; !found || c.Source > have.Source {
				want[c.Prefix] = ipcache.NewEntry(c, owner)
			}
		}
	}
	n := 0
	for e := range table.All(db.ReadTxn()) {
		n++
		if w, found := want[e.Prefix()]; !found || !w.Equal(e) {
			t.Fatalf("%s: have %+v, want %+v", e.Prefix(), e, w)
		}
	}
	if n != len(want) {
		t.Fatalf("%d rows, want %d", n, len(want))
	}
}

func TestPrivilegedKernel_WholeAddressesAndPrefixes(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	all := celltest.Maps{}
	for _, name := range []string{bpf.MapIpcache, bpf.MapIpcachePrefixes, bpf.MapEpochs, bpf.MapEpochShards} {
		m, err := ebpf.NewMap(specs[name])
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		all[name] = m
	}
	k := newKernel(all)
	want := map[netip.Prefix]value{
		netip.MustParsePrefix("10.1.0.7/32"): {Identity: 5},
		netip.MustParsePrefix("fd00::7/128"): {Identity: 5},
		netip.MustParsePrefix("10.1.0.0/16"): {Identity: 9, Node: 16383},
		netip.MustParsePrefix("0.0.0.0/0"):   {Identity: 2},
		netip.MustParsePrefix("fd00::/8"):    {Identity: 10},
	}
	for p, v := range want {
		if err := k.Put(p, v, netip.Addr{}); err != nil {
			t.Fatalf("put %s: %v", p, err)
		}
	}
	have, err := k.Dump()
	if err != nil || !maps.Equal(have, want) {
		t.Fatalf("have %v, error %v; want %v", have, err, want)
	}
	for i := range uint32(3) {
		for name, slot := range map[string]uint32{bpf.MapEpochs: bpf.EpochIPCache, bpf.MapEpochShards: bpf.EpochShards - 1} {
			var epoch uint32
			if err := all[name].Lookup(slot, &epoch); err != nil || epoch != i {
				t.Fatalf("%s: epoch %d, error %v; want %d", name, epoch, err, i)
			}
		}
		if err := errors.Join(k.RaiseAll(), k.Raise([]uint32{7, bpf.EpochShards - 1})); err != nil {
			t.Fatal(err)
		}
	}
	for p := range want {
		for range 2 { // deleting a missing entry succeeds
			if err := k.Delete(p); err != nil {
				t.Fatalf("delete %s: %v", p, err)
			}
		}
	}
	if have, err := k.Dump(); err != nil || len(have) != 0 {
		t.Fatalf("left %v, error %v", have, err)
	}
}
