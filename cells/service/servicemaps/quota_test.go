package servicemaps

import (
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

func TestQuotaOf(t *testing.T) {
	t.Parallel()
	f := &inForce{sizes: map[string]uint32{bpf.MapServices: 65536, bpf.MapBackends: 65536, bpf.MapServiceSlots: 98304}}
	for n, want := range map[int][3]int{-1: {32768, 32768, 49152}, 0: {}, 1: {1, 1, 1}, 1000: {1000, 1000, 1500}} {
		f.namespaceEntries = n
		require.Equal(t, want, [3]int{f.quotaOf(bpf.MapServices), f.quotaOf(bpf.MapBackends), f.quotaOf(bpf.MapServiceSlots)}, n)
	}
	require.Error(t, Config{NamespaceEntries: -2}.validate())
	require.NoError(t, DefaultConfig.validate())
}

// newQuotas is an agent whose namespaces may have ten frontends, ten backends and twenty slots.
func newQuotas(t *testing.T, f *fakes) *tenants {
	s := newTenants(t, f)
	s.writer.known.namespaceEntries = halfOfMap
	return s
}

func (s *tenants) row(i int) *frontends.Frontend {
	row, _, _ := s.Frontends.Table.Get(s.DB.ReadTxn(), frontends.ByAddress(s.address(i)))
	return row
}

// TestQuota_OthersDoNotWait: a namespace that wants more than its quota does not take the maps from others and the Service of the API server. What it had
// stays in force, and it gets more when it has removed some.
func TestQuota_OthersDoNotWait(t *testing.T) {
	t.Parallel()
	s := newQuotas(t, newFakes(20, 40, 0))
	s.pods("tenant", 1, 30)
	s.want("tenant", 0, 40, 1)
	s.rounds(3)
	require.Len(t, s.fakes.backends.entries, 10)
	require.Equal(t, 10, s.served(0, 40))
	require.Contains(t, s.row(10).Status.GetError(), "raise --service-entries-per-namespace")
	require.NotZero(t, s.writer.known.rejected[bpf.MapServices])
	require.NotZero(t, s.writer.known.rejected[bpf.MapBackends])

	s.pods("other", 101, 106)
	s.want("other", 100, 106, 101, 102)
	s.rounds(1)
	require.Equal(t, 6, s.served(100, 106))

	txn := s.DB.WriteTxn(s.backs, s.Frontends.Table)
	for i, service := range []string{"default/kubernetes", "other/web-0:host-port/uid/8080", "tenant/web-0:host-port/uid/8080"} {
		id := uint32(201 + i)
		_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(id), ID: id, State: backends.Active, Services: []string{service}})
		_, _, _ = s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: s.address(200 + i), ID: id, Kind: frontends.ClusterIP, Service: service,
			Backends: []uint32{id}, Status: reconciler.StatusPending()})
	}
	txn.Commit()
	s.rounds(1)
	require.Equal(t, []int{2, 0}, []int{s.served(200, 202), s.served(202, 203)}, "a host port counts for the namespace of its pod")
	s.without(202, 203)

	s.want("tenant", 0, 1, 2, 3) // a change of a Service within its quota comes into force
	s.want("tenant", 1, 2, 29)   // and one whose only backend is beyond it keeps its previous one
	s.rounds(1)
	require.Equal(t, reconciler.StatusKindDone, s.row(0).Status.Kind)
	require.Contains(t, s.row(1).Status.GetError(), "raise --service-entries-per-namespace")
	require.Equal(t, []uint32{1}, s.fakes.list(s.fakes.services.get(externalKey(s.row(1)))))

	s.want("short-lived", 300, 301)
	s.rounds(1)
	s.without(300, 301)
	s.rounds(1)
	s.verify(s.DB.ReadTxn())
	require.NotContains(t, s.writer.known.namespaces, "short-lived")
	require.Contains(t, s.writer.known.namespaces, "tenant")

	s.without(2, 5)
	s.rounds(3)
	require.Equal(t, 9, s.served(0, 40), "all ten except the one with its previous backend")
	require.Equal(t, 10, s.writer.known.namespaces.of("tenant/web").entries)
}

// TestQuota_Slots: Services of a namespace need more slots than its quota, also while their lists change in quick succession. Their previous slots suffice for as
// many backends, and a removed backend gets no connections.
func TestQuota_Slots(t *testing.T) {
	t.Parallel()
	s := newQuotas(t, newFakes(60, 40, 0))
	s.pods("tenant", 1, 25)
	s.pods("other", 101, 120)
	s.want("tenant", 0, 3, 1, 2, 3, 4, 5, 6)
	s.rounds(1)
	s.want("tenant", 3, 4, 1, 2, 3, 4)
	s.rounds(1)
	s.now = s.now.Add(quarantine)
	s.rounds(2)
	require.Equal(t, 3, s.served(0, 10))
	require.Contains(t, s.row(3).Status.GetError(), "raise --service-entries-per-namespace")
	for i := range uint32(10) {
		s.want("tenant", 0, 3, 1+i, 2+i, 3+i, 4+i, 5+i, 6+i)
		s.rounds(1)
		require.LessOrEqual(t, s.writer.known.namespaces.of("tenant/web").slots, 20+6)
	}
	s.want("other", 100, 101, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110)
	s.rounds(1)
	require.Equal(t, 1, s.served(100, 101))
	require.Equal(t, 3, s.served(0, 3))

	s.want("tenant", 0, 1, 1)
	s.without(100, 101)
	s.rounds(1)
	s.now = s.now.Add(quarantine)
	s.rounds(3)
	require.Equal(t, 4, s.served(0, 4))
	s.want("tenant", 1, 2, 11, 12, 13, 14, 15, 16, 17)
	s.rounds(1)
	s.now = s.now.Add(quarantine)
	s.rounds(2)
	require.Equal(t, reconciler.StatusKindDone, s.row(1).Status.Kind, "one slot more, although a copy would not fit: %s", s.row(1).Status.GetError())
}

// TestQuota_Restart: the entries of the previous run are restored in full and stay, also beyond a quota that is smaller now. They count for their namespace before
// its new Services and backends.
func TestQuota_Restart(t *testing.T) {
	t.Parallel()
	f := newFakes(20, 40, 0)
	s := newTenants(t, f)
	s.pods("tenant", 2, 14)
	s.want("tenant", 10, 22, 2, 3)
	s.rounds(1)
	require.Len(t, f.services.entries, 12)

	a := newAgent(t, f)
	next := &tenants{t, a, f, s.now.Add(quarantine)}
	next.writer.known.namespaceEntries = halfOfMap
	next.rounds(1)
	require.Len(t, f.services.entries, 12, "the tables are not complete")
	next.pods("tenant", 1, 14)
	before := f.writes()
	for _, rows := range [][2]int{{0, 10}, {10, 22}} { // those without an entry come first, in a pass of their own
		next.want("tenant", rows[0], rows[1], 2, 3)
		next.rounds(1)
	}
	next.completeTables()
	next.rounds(2)
	require.Equal(t, before, f.writes())
	require.Equal(t, []int{0, 12}, []int{next.served(0, 10), next.served(10, 22)})
	require.Len(t, f.backends.entries, 12)
}

// share inserts backends that services of two namespaces use.
func (s *tenants) share(first, end uint32) {
	txn := s.DB.WriteTxn(s.backs)
	defer txn.Commit()
	for id := first; id < end; id++ {
		_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(id), ID: id, State: backends.Active, Services: []string{"attacker/web", "other/web"}})
	}
}

// TestQuota_SharedBackend: a namespace that has used up its quota names backends of another one, which gets them nevertheless, within its own quota.
func TestQuota_SharedBackend(t *testing.T) {
	t.Parallel()
	s := newQuotas(t, newFakes(20, 40, 0))
	used := func() [2]int {
		return [2]int{s.writer.known.namespaces.of("attacker/web").backends, s.writer.known.namespaces.of("other/web").backends}
	}
	s.pods("attacker", 1, 12)
	s.rounds(1)
	s.share(50, 51)
	s.rounds(1)
	require.NotZero(t, s.fakes.backends.get(50))
	require.Equal(t, [2]int{10, 1}, used())

	s.pods("other", 101, 110)
	s.rounds(1)
	require.Equal(t, [2]int{10, 10}, used())
	s.share(51, 52)
	s.rounds(1)
	require.Zero(t, s.fakes.backends.get(51), "both namespaces have used up their quotas")
	s.drop(101, 102)
	s.rounds(2)
	require.NotZero(t, s.fakes.backends.get(51), "one of them has removed a backend")
	require.Equal(t, [2]int{10, 10}, used())

	s.pods("attacker", 50, 51) // the other one's Service is deleted
	s.rounds(1)
	require.Equal(t, [2]int{11, 9}, used())
	s.pods("other", 110, 111)
	s.share(60, 61)
	s.rounds(1)
	s.exhaust()
	txn := s.DB.WriteTxn(s.backs)
	_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(60), ID: 61, State: backends.Active, Services: []string{"other/web"}})
	txn.Commit()
	s.step(s.now)
	s.verify(s.DB.ReadTxn())
	require.Contains(t, s.writer.left.againBackends.rows, uint32(61))
	require.NotContains(t, s.writer.left.againBackends.rows, uint32(60), "its row has another id")
}

// TestQuota_SharedBackend_OneBatch: planned backends count when the namespace with the fewest backends is selected, and backends that could not be written no longer count.
func TestQuota_SharedBackend_OneBatch(t *testing.T) {
	t.Parallel()
	s := newQuotas(t, newFakes(20, 40, 0))
	s.pods("attacker", 1, 9)
	s.share(50, 61)
	s.fakes.backends.fail(func() bool { return true })
	s.rounds(1)
	require.Equal(t, namespace{name: "attacker"}, *s.writer.known.namespaces.of("attacker/web"))
	s.fakes.backends.fail(nil)
	s.rounds(1)
	require.Len(t, s.fakes.backends.entries, 19)
	require.Equal(t, [2]int{10, 9}, [2]int{s.writer.known.namespaces.of("attacker/web").backends, s.writer.known.namespaces.of("other/web").backends})
	s.drop(1, 9)
	s.rounds(1)
	s.share(50, 61)
	s.rounds(1)
	require.Equal(t, 9, s.writer.known.namespaces.of("other/web").backends, "as long as its services use them")
}
