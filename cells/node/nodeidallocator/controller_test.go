package nodeidallocator

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rig is a controller without a goroutine. The test fills its tables and calls its rounds.
type rig struct {
	*controller
	kernel   *fakeKernel
	nodes    statedb.RWTable[*nodes.Node]
	flows    statedb.RWTable[conntrack.Map]
	complete func(statedb.WriteTxn) // completes the table nodes
}

func newRig(tb testing.TB, stateDir string) *rig {
	tb.Helper()
	return newRigAfter(tb, stateDir, nil)
}

// newRigAfter returns a rig after a run that left addresses in node_addrs, and entries of ipcache with the ids in named.
func newRigAfter(tb testing.TB, stateDir string, left map[netip.Addr]uint16, named ...uint16) *rig {
	tb.Helper()
	db := statedb.New()
	table, err1 := nodeids.NewTable(db)
	all, err2 := nodes.NewTable(db)
	flows, err3 := conntrack.NewTable(db)
	for _, err := range []error{err1, err2, err3} {
		require.NoError(tb, err)
	}
	txn := db.WriteTxn(all)
	complete := all.RegisterInitializer(txn, "test")
	txn.Commit()
	k := newFake()
	k.addrs = left
	for _, id := range named {
		k.named[id] = true
	}
	c := newController(params{DB: db, Log: quiet, Settings: agentconfig.Agent{StateDir: stateDir}, Table: table, Nodes: all, Flows: flows, Kernel: k})
	require.NoError(tb, c.restore())
	require.NoError(tb, c.subscribe())
	tb.Cleanup(c.nodes.Close)
	return &rig{c, k, all, flows, complete}
}

// write changes nodes and flows in one commit.
func (r *rig) write(change func(statedb.WriteTxn)) {
	txn := r.DB.WriteTxn(r.nodes, r.flows)
	defer txn.Commit()
	change(txn)
}

// pass records a pass of the flow collector that began now.
func (r *rig) pass(txn statedb.WriteTxn) {
	for _, name := range conntrack.FlowMaps() {
		_, _, _ = r.flows.Insert(txn, conntrack.Map{Name: name, Began: time.Now()})
	}
}

func (r *rig) rows() []*nodeids.NodeID { return statedb.Collect(r.Table.All(r.DB.ReadTxn())) }

// timelessRow is a row without the time of its release.
type timelessRow struct {
	id        uint16
	name, uid string
	released  bool
}

func timeless(rows []*nodeids.NodeID) (list []timelessRow) {
	for _, row := range rows {
		list = append(list, timelessRow{row.ID, row.Name, row.UID, !row.Released.IsZero()})
	}
	return list
}

// TestController_MatchesFullRound changes nodes at random and compares the result of each round with the result of a round over all nodes. After
// each successful round the files contain the rows of the table, also after failed writes.
func TestController_MatchesFullRound(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	released, freed, failed := 0, 0, 0
	for range 5 {
		dir := t.TempDir()
		f := newFiles(agentconfig.Agent{StateDir: dir})
		require.NoError(t, f.store.Open())
		require.NoError(t, f.write(map[int][]*nodeids.NodeID{0: numbered(1, 3), 1: numbered(fileIDs, fileIDs+2)}))
		r := newRig(t, dir)
		for i := range 400 {
			r.write(func(txn statedb.WriteTxn) {
				for range random.IntN(4) {
					n := &nodes.Node{Name: fmt.Sprint("n", 1+random.IntN(200)), UID: fmt.Sprint(random.IntN(2)), Source: nodes.Kubernetes}
					if n.Name == "n7" {
						n.Source = nodes.Local
					}
					_, _, err := r.nodes.Insert(txn, n)
					require.NoError(t, err)
				}
				for range random.IntN(4) {
					_, _, err := r.nodes.Delete(txn, &nodes.Node{Name: fmt.Sprint("n", 1+random.IntN(200))})
					require.NoError(t, err)
				}
				if random.IntN(10) == 0 {
					r.pass(txn)
				}
				if i == 50 {
					r.complete(txn)
				}
			})
			r.kernel.named = map[uint16]bool{uint16(random.IntN(200)): true}
			broken := random.IntN(10) == 0
			if broken { // a file in the place of the directory makes writes fail
				require.NoError(t, os.Rename(f.store.Dir(), f.store.Dir()+".away"))
				require.NoError(t, os.WriteFile(f.store.Dir(), nil, 0o600))
			}
			txn, have := r.DB.ReadTxn(), r.rows()
			complete, _ := r.Nodes.Initialized(txn)
			var readError error
			want := assign(have, statedb.Collect(r.nodes.All(txn)), complete, time.Now(), r.unused(txn, &readError)).rows()
			require.NoError(t, readError)
			err := r.round(txn, statedb.NewWatchSet())
			if broken {
				require.NoError(t, os.Remove(f.store.Dir()))
				require.NoError(t, os.Rename(f.store.Dir()+".away", f.store.Dir()))
			}
			if err != nil {
				require.True(t, broken, "%v", err)
				r.taken = nil
				want = have
				failed++
			}
			require.Equal(t, timeless(want), timeless(r.rows()), "round %d", i)
			done, _ := r.Table.Initialized(r.DB.ReadTxn())
			require.Equal(t, complete, done)
			if err == nil {
				files, missing, err := f.read(quiet, removal)
				require.NoError(t, err)
				require.Empty(t, missing)
				require.Equal(t, timeless(want), timeless(files), "round %d", i)
			}
			released += len(r.released)
			freed += max(0, len(have)-len(want))
		}
	}
	require.NotZero(t, released)
	require.NotZero(t, freed)
	require.NotZero(t, failed)
}

// TestController_NodeWithoutID_GetsFreedID: the node without an id does not change between the rounds.
func TestController_NodeWithoutID_GetsFreedID(t *testing.T) {
	t.Parallel()
	r := newRig(t, t.TempDir())
	round := func(change func(statedb.WriteTxn)) {
		t.Helper()
		r.write(change)
		require.NoError(t, r.round(r.DB.ReadTxn(), statedb.NewWatchSet()))
	}
	one := func(i int) *nodes.Node { return &nodes.Node{Name: fmt.Sprintf("n%05d", i), Source: nodes.Kubernetes} }
	round(func(txn statedb.WriteTxn) {
		for i := range nodeids.Max + 1 {
			_, _, err := r.nodes.Insert(txn, one(i))
			require.NoError(t, err)
		}
		r.complete(txn)
	})
	last := one(nodeids.Max).Name
	require.Contains(t, r.without, last)
	round(func(txn statedb.WriteTxn) {
		_, _, err := r.nodes.Delete(txn, one(300))
		require.NoError(t, err)
	})
	require.Contains(t, r.without, last, "flows may hold the id")
	round(r.pass)
	require.Empty(t, r.without)
	row, _, found := r.Table.Get(r.DB.ReadTxn(), nodeids.ByName(last))
	require.True(t, found)
	require.EqualValues(t, 301, row.ID)
}

// BenchmarkNodeJoins measures a round with one new node beside 5,000 others, including the write of its file.
func BenchmarkNodeJoins(b *testing.B) {
	r := newRig(b, b.TempDir())
	r.write(func(txn statedb.WriteTxn) {
		for i := range 5000 {
			_, _, err := r.nodes.Insert(txn, &nodes.Node{Name: fmt.Sprint("node-", i), UID: "5a1ef0de-0001-4000-8000-000000000000", Source: nodes.Kubernetes})
			require.NoError(b, err)
		}
		r.complete(txn)
	})
	round := func() { require.NoError(b, r.round(r.DB.ReadTxn(), statedb.NewWatchSet())) }
	round()
	joins := 0
	b.ReportAllocs()
	for b.Loop() {
		joins++
		n := &nodes.Node{Name: fmt.Sprint("joins-", joins), UID: "5a1ef0de-0001-4000-8000-000000000001", Source: nodes.Kubernetes}
		r.write(func(txn statedb.WriteTxn) {
			_, _, err := r.nodes.Insert(txn, n)
			require.NoError(b, err)
		})
		round()
		b.StopTimer()
		r.write(func(txn statedb.WriteTxn) {
			_, _, err := r.nodes.Delete(txn, n)
			require.NoError(b, err)
		})
		round()
		r.write(r.pass)
		round()
		b.StartTimer()
	}
}
