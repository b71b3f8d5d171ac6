package servicemaps

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// A service changes to the traffic policy Local, and back to Cluster: with Local, external clients may keep only backends of this node, internal clients all.
// No client loses a backend before the entry does.
func TestModel_AffinityFollowsThePolicy(t *testing.T) {
	t.Parallel()
	m := newModel(t, newFakes(200, 600, 12))
	m.watch()
	a := m.restart(true)
	for len(m.backs) < 2 {
		m.change(a)
	}
	m.settle(a)
	const id = 1050 // id of the row
	some := slices.Sorted(maps.Keys(m.backs))
	here, elsewhere := some[0], some[1]
	both, outside, inside := uint32(1<<bpf.ScopeExternal|1<<bpf.ScopeInternal), uint32(1<<bpf.ScopeExternal), uint32(1<<bpf.ScopeInternal)
	cluster, local := map[uint32]uint32{here: outside, elsewhere: outside}, map[uint32]uint32{here: both, elsewhere: inside}
	for i, want := range []map[uint32]uint32{cluster, local, local, cluster} {
		if i == 2 {
			m.now = m.now.Add(quarantine)
			a = m.restart(true)
		}
		row := m.front(50)
		row.Affinity, row.Backends, row.TwoScopes, row.Internal = 600, []uint32{here, elsewhere}, false, nil
		if want[here] == both {
			row.TwoScopes, row.Backends, row.Internal = true, []uint32{here}, []uint32{here, elsewhere}
		}
		txn := a.DB.WriteTxn(a.Frontends.Table)
		m.insertFront(txn, a, row)
		txn.Commit()
		m.now = m.now.Add(time.Second)
		m.settle(a)
		m.check(a)
		have := map[uint32]uint32{}
		for _, key := range m.fakes.members.keys() {
			if key.Service == id {
				have[key.Backend] = m.fakes.members.get(key)
			}
		}
		if !maps.Equal(have, want) {
			t.Fatalf("step %d: have %v, want %v", i, have, want)
		}
	}
}
