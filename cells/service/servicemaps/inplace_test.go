package servicemaps

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// slotsOf returns the backends in the slots of an entry.
func (s *tenants) slotsOf(key bpf.ServiceKey) (ids []uint32) {
	e := s.fakes.services.get(key)
	for i := e.First; i < e.First+e.Count; i++ {
		ids = append(ids, s.fakes.slots.get(i))
	}
	return ids
}

// Each change of one of many backends writes the slots that change and no others, and clients find the backends of the row after each.
func TestInPlace_OneOfMany_WritesItsSlot(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(5000, 20000, 0))
	const n = 1000
	row := func(ids []uint32) {
		txn := s.DB.WriteTxn(s.Frontends.Table)
		_, _, err := s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: s.address(0), ID: 1000, Kind: frontends.ClusterIP, Service: "a/web",
			Backends: ids, Status: reconciler.StatusPending()})
		require.NoError(t, err)
		txn.Commit()
	}
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	s.pods("a", 1, n+10)
	row(ids)
	s.rounds(1)
	key := bpf.NewServiceKey(s.address(0), bpf.ScopeExternal)
	for _, c := range []struct {
		name   string
		ids    []uint32
		writes int
	}{
		{"the first is removed: the last takes its slot", ids[1:], 1},
		{"it comes back: behind the others", ids, 1},
		{"one is replaced", append(slices.Clone(ids[:n-1]), n+1), 1},
		{"another order", append([]uint32{n + 1}, ids[:n-1]...), 0},
	} {
		before := s.fakes.slots.count()
		row(c.ids)
		s.rounds(1)
		require.Equal(t, c.writes, s.fakes.slots.count()-before, c.name)
		require.ElementsMatch(t, c.ids, s.slotsOf(key), c.name)
		s.now = s.now.Add(2 * quarantine)
		s.rounds(1)
	}
}

// Changes that follow each other within the quarantine need no other slots: a list that becomes longer again gets the slots that it had.
func TestInPlace_ManyChangesWithinQuarantine(t *testing.T) {
	t.Parallel()
	const n = 1000
	s := newTenants(t, newFakes(2*n, 2*n, 0))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	s.pods("a", 1, n+1)
	s.want("a", 0, 1, ids...)
	s.step(s.now)
	first, before := s.fakes.services.get(bpf.NewServiceKey(s.address(0), bpf.ScopeExternal)).First, s.fakes.slots.count()
	for i := range 20 {
		s.now = s.now.Add(quarantine / 50)
		s.want("a", 0, 1, ids[:n-3*(1-i%2)]...)
		s.step(s.now)
	}
	require.Equal(t, 10*3, s.fakes.slots.count()-before)
	require.Equal(t, first, s.fakes.services.get(bpf.NewServiceKey(s.address(0), bpf.ScopeExternal)).First)
	require.ElementsMatch(t, ids, s.slotsOf(bpf.NewServiceKey(s.address(0), bpf.ScopeExternal)))
	s.now = s.now.Add(2 * quarantine)
	s.step(s.now)
	require.Equal(t, n, s.writer.known.namespaces["a"].slots)
	require.Empty(t, s.writer.known.waiting)
}

// A backend that was removed from slots stays in the map for programs that have just read them, until the quarantine ends.
func TestInPlace_RemovedBackend_StaysDuringQuarantine(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(5000, 20000, 0))
	ids := make([]uint32, inPlace+1)
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	s.pods("a", 1, inPlace+2)
	s.want("a", 0, 1, ids...)
	s.rounds(1)
	s.want("a", 0, 1, ids[1:]...)
	txn := s.DB.WriteTxn(s.backs)
	_, _, _ = s.backs.Delete(txn, &backends.Backend{Address: backAddress(1), ID: 1})
	txn.Commit()
	s.rounds(1)
	require.NotZero(t, s.fakes.backends.get(1))
	s.now = s.now.Add(quarantine + time.Second)
	s.rounds(3)
	require.Zero(t, s.fakes.backends.get(1))
}

func TestArranged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ list, own, want []uint32 }{
		{[]uint32{1, 2, 3}, nil, []uint32{1, 2, 3}},
		{[]uint32{1, 2, 3}, []uint32{3, 1, 2}, []uint32{3, 1, 2}},
		{[]uint32{2, 3}, []uint32{1, 2, 3}, []uint32{3, 2}},
		{[]uint32{1, 2, 4, 5}, []uint32{1, 3, 2}, []uint32{1, 4, 2, 5}},
		{[]uint32{7}, []uint32{1, 2, 3}, []uint32{7}},
	} {
		require.Equal(t, c.want, arranged(c.list, c.own))
	}
}
