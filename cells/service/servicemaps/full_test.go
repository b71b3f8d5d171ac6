package servicemaps

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// tenants is an agent whose frontends belong to several namespaces.
type tenants struct {
	*testing.T
	*agent
	fakes *fakes
	now   time.Time
}

func newTenants(t *testing.T, f *fakes) *tenants {
	s := &tenants{t, newAgent(t, f), f, time.Unix(1000, 0)}
	s.completeTables()
	return s
}

// address returns the address of frontend i; odd ones are of IPv6.
func (s *tenants) address(i int) loadbalancer.Address {
	a := frontAddress(i)
	if i%2 == 1 {
		v4 := a.Addr.As4()
		a.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]})
	}
	return a
}

// want inserts frontends of a namespace, with numbers from first to end-1.
func (s *tenants) want(namespace string, first, end int, ids ...uint32) {
	txn := s.DB.WriteTxn(s.Frontends.Table)
	defer txn.Commit()
	for i := first; i < end; i++ {
		_, _, _ = s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: s.address(i), ID: uint32(1000 + i), Kind: frontends.ClusterIP,
			Service: namespace + "/web", Backends: ids, Status: reconciler.StatusPending()})
	}
}

// without deletes frontends.
func (s *tenants) without(first, end int) {
	txn := s.DB.WriteTxn(s.Frontends.Table)
	defer txn.Commit()
	for i := first; i < end; i++ {
		_, _, _ = s.Frontends.Table.Delete(txn, &frontends.Frontend{Address: s.address(i)})
	}
}

// pods inserts backends of a namespace, with ids from first to end-1.
func (s *tenants) pods(namespace string, first, end uint32) {
	txn := s.DB.WriteTxn(s.backs)
	defer txn.Commit()
	for id := first; id < end; id++ {
		_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(id), ID: id, State: backends.Active, Services: []string{namespace + "/web"}})
	}
}

// rounds makes passes, the first one at once and each other one when freed capacity causes a retry at the earliest.
func (s *tenants) rounds(n int) {
	for range n {
		s.step(s.now)
		s.now = s.now.Add(minRetry)
	}
}

// exhaust makes passes until the next retry without freed capacity is [maxRetry] later.
func (s *tenants) exhaust() {
	for range 12 {
		s.now = s.now.Add(maxRetry)
		s.step(s.now)
	}
}

// served counts the frontends of a range that are in force.
func (s *tenants) served(first, end int) (n int) {
	for i := first; i < end; i++ {
		if row, _, found := s.Frontends.Table.Get(s.DB.ReadTxn(), frontends.ByAddress(s.address(i))); found && row.InForce {
			n++
		}
	}
	return n
}

// drop deletes backends.
func (s *tenants) drop(first, end uint32) {
	txn := s.DB.WriteTxn(s.backs)
	defer txn.Commit()
	for id := first; id < end; id++ {
		_, _, _ = s.backs.Delete(txn, &backends.Backend{Address: backAddress(id), ID: id})
	}
}

// TestFullMaps_OtherChanges_RetryNothing: while a map is full, frontends that have entries change, and a namespace gets and loses backends. The frontends that do
// not fit are not tried again.
func TestFullMaps_OtherChanges_RetryNothing(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(10, 100, 0))
	s.pods("own", 1, 9)
	s.want("own", 0, 10, 1)
	s.rounds(1)
	s.want("more", 10, 60, 1)
	s.rounds(1)
	s.exhaust()
	before, rejected := s.fakes.services.count(), s.writer.known.rejected[bpf.MapServices]
	for i := range 20 {
		s.want("own", 0, 1, uint32(2+i%6))
		s.rounds(2)
		s.now = s.now.Add(quarantine)
		s.pods("own", 9, 10)
		s.rounds(1)
		s.drop(9, 10)
		s.rounds(1)
	}
	require.Equal(t, 20, s.fakes.services.count()-before)
	require.Equal(t, rejected, s.writer.known.rejected[bpf.MapServices])
	require.Zero(t, s.served(10, 60))
}

// TestFullMaps_FreedEntries_FewestFirst: entries become free while many frontends wait. Those of the namespaces with the fewest entries get them.
func TestFullMaps_FreedEntries_FewestFirst(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(20, 100, 0))
	s.pods("large", 1, 2)
	s.want("large", 0, 16, 1)
	s.want("small", 100, 104, 1)
	s.rounds(1)
	s.want("large", 16, 60, 1)
	s.rounds(1)
	s.want("small", 104, 140, 1)
	s.want("new", 200, 202, 1)
	s.rounds(1)
	before, tries := s.fakes.services.count(), s.writer.left.attempts
	s.without(0, 6)
	s.rounds(4)
	require.Equal(t, []int{10, 8, 2}, []int{s.served(0, 60), s.served(100, 140), s.served(200, 202)})
	require.Equal(t, 2*6, s.fakes.services.count()-before, "six deletions and six writes")
	require.LessOrEqual(t, s.writer.left.attempts-tries, uint64(2*76), "two retries, because of the deletion and after a time")
	for i := 104; i < 108; i++ {
		require.Equal(t, 1, s.served(i, i+1), "in the order in which they failed")
	}
	s.without(6, 16)
	s.rounds(4)
	require.Equal(t, []int{9, 9, 2}, []int{s.served(0, 60), s.served(100, 140), s.served(200, 202)})
}

// TestFullMaps_DefaultKubernetes_First: the frontend of the API server gets a freed entry, although other namespaces have none.
func TestFullMaps_DefaultKubernetes_First(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(10, 100, 0))
	s.pods("own", 1, 2)
	s.want("own", 0, 10, 1)
	s.rounds(1)
	s.want("new", 10, 20, 1)
	s.rounds(1)
	s.exhaust()
	txn := s.DB.WriteTxn(s.Frontends.Table)
	_, _, _ = s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: s.address(20), ID: 1020, Kind: frontends.ClusterIP, Service: "default/kubernetes",
		Backends: []uint32{1}, Status: reconciler.StatusPending()})
	txn.Commit()
	s.rounds(1)
	s.without(0, 1)
	s.rounds(3)
	require.Equal(t, []int{9, 0, 1}, []int{s.served(0, 10), s.served(10, 20), s.served(20, 21)})
}

// TestFullMaps_Coalesced: entries become free one after the other in quick succession. The rows that wait are not tried each time.
func TestFullMaps_Coalesced(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(20, 100, 0))
	s.pods("own", 1, 2)
	s.want("own", 0, 20, 1)
	s.rounds(1)
	s.want("own", 20, 70, 1)
	s.rounds(1)
	s.exhaust()
	tries := s.writer.left.attempts
	for i := range 10 {
		s.without(i, i+1)
		s.step(s.now)
		s.now = s.now.Add(minRetry / 20)
	}
	s.now = s.now.Add(minRetry)
	s.rounds(1)
	require.Equal(t, 10, s.served(20, 70))
	require.LessOrEqual(t, s.writer.left.attempts-tries, uint64(2*50))
}

// TestFullMaps_ManyRows_NoneStarves: a namespace without entries has more rows than one pass retries, and none of them fits. The row of another namespace is
// retried nevertheless, and passes do not follow each other without progress.
func TestFullMaps_ManyRows_NoneStarves(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(10_000, 1500, 0))
	s.pods("small", 1, 12)
	s.pods("large", 101, 102)
	s.want("large", 0, 1500, 101)
	s.rounds(1)
	s.want("small", 2000, 5000, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	s.rounds(1)
	s.want("large", 1500, 1501, 101)
	s.rounds(1)
	s.without(0, 1)
	s.rounds(1)
	s.now = s.now.Add(quarantine)
	tries := s.writer.left.attempts
	require.Greater(t, s.step(s.now), minRetry/2, "a pass without progress is not followed by another one")
	require.Equal(t, uint64(retried), s.writer.left.attempts-tries)
	passes := 1
	for ; s.served(1500, 1501) == 0 && passes < 100; passes++ {
		s.now = s.now.Add(maxRetry)
		s.step(s.now)
	}
	require.LessOrEqual(t, passes, 1+3001/(retried/4))
}

// TestFullMaps_ManyRows_AllFit: more rows fit than one pass retries. The next passes follow at once.
func TestFullMaps_ManyRows_AllFit(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(3000, 10_000, 0))
	s.pods("own", 1, 2)
	s.want("own", 0, 3000, 1)
	s.rounds(1)
	s.want("own", 3000, 6000, 1)
	s.rounds(1)
	s.without(0, 3000)
	s.rounds(1)
	require.Equal(t, time.Nanosecond, s.step(s.now))
	require.Equal(t, time.Nanosecond, s.step(s.now))
	s.step(s.now)
	require.Equal(t, 3000, s.served(3000, 6000))
}

// TestFullMaps_TwoReasons: a backend and the deny ranges of a frontend do not fit. It is retried when the ranges fit, although the backend never does.
func TestFullMaps_TwoReasons(t *testing.T) {
	t.Parallel()
	f := newFakes(100, 100, 0)
	f.ranges = newFakeMap[bpf.SourceRangeKey, uint32](bpf.MapSourceRanges, 1)
	f.backends = newFakeMap[uint32, bpf.Backend](bpf.MapBackends, 1)
	s := newTenants(t, f)
	limited := func(i int) {
		txn := s.DB.WriteTxn(s.Frontends.Table)
		defer txn.Commit()
		_, _, _ = s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: s.address(2 * i), ID: uint32(1000 + 2*i), Kind: frontends.ClusterIP, Service: "own/web",
			Backends: []uint32{1, 2}, Outside: true, Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Deny: true, Status: reconciler.StatusPending()})
	}
	s.pods("own", 1, 3)
	limited(0)
	s.rounds(1)
	limited(1)
	s.rounds(1)
	s.exhaust()
	require.Equal(t, []int{1, 0}, []int{s.served(0, 1), s.served(2, 3)})
	s.without(0, 1)
	s.rounds(2)
	require.Equal(t, 1, s.served(2, 3))
	require.Contains(t, s.row(2).Status.GetError(), "raise --bpf-lb-map-max", "its second backend")
}

// TestFullMaps_TransientErrors_NotDelayed: rows have waited for capacity for long when the write of another one fails. It is retried after the shortest time.
func TestFullMaps_TransientErrors_NotDelayed(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(10, 9, 0))
	s.pods("own", 1, 2)
	s.want("own", 0, 10, 1)
	s.rounds(1)
	s.exhaust()
	require.Equal(t, 9, s.served(0, 10))
	s.fakes.services.fail(func() bool { return true })
	s.without(0, 1)
	s.now = s.now.Add(quarantine)
	require.LessOrEqual(t, s.step(s.now), minRetry)
	s.fakes.services.fail(nil)
	s.now = s.now.Add(minRetry)
	s.step(s.now)
	require.Len(t, s.fakes.services.entries, 8)
}

// TestFullSlots_FreedSlots_FewestFirst: slots become free while many frontends wait for some.
func TestFullSlots_FreedSlots_FewestFirst(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(200, 40, 0))
	s.pods("large", 1, 30)
	s.want("large", 0, 9, 1, 2, 3, 4)
	s.want("small", 100, 101, 1, 2, 3, 4)
	s.rounds(1)
	s.want("large", 9, 50, 1, 2, 3, 4)
	s.want("small", 101, 150, 5, 6)
	s.rounds(1)
	s.without(0, 2)
	s.exhaust()
	s.rounds(1)
	require.Equal(t, []int{7, 5}, []int{s.served(0, 50), s.served(100, 150)})
}

// TestFullBackends_FreedEntries_FewestFirst: backends of two namespaces wait for entries.
func TestFullBackends_FreedEntries_FewestFirst(t *testing.T) {
	t.Parallel()
	f := newFakes(200, 200, 0)
	f.backends = newFakeMap[uint32, bpf.Backend](bpf.MapBackends, 10)
	s := newTenants(t, f)
	s.pods("large", 1, 9)
	s.pods("small", 101, 103)
	s.rounds(1)
	s.pods("large", 9, 50)
	s.pods("small", 103, 120)
	s.want("large", 0, 30, 9)
	s.want("small", 100, 101, 103)
	s.rounds(1)
	s.drop(1, 2)
	s.rounds(3)
	require.NotZero(t, s.fakes.backends.get(103))
	require.Zero(t, s.fakes.backends.get(9))
	require.Equal(t, reconciler.StatusKindDone, s.row(100).Status.Kind)
}
