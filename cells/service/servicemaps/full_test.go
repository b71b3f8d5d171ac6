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

// rounds makes passes, the first one at once and each other one a nanosecond later.
func (s *tenants) rounds(n int) {
	for range n {
		s.step(s.now)
		s.now = s.now.Add(time.Nanosecond)
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

// TestFullMaps_OtherChanges_RetryNothing: while a map is full, frontends that have places change, and a namespace gets and loses backends. The frontends that do
// not fit are not written again.
func TestFullMaps_OtherChanges_RetryNothing(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(10, 100, 0))
	s.pods("own", 1, 9)
	s.want("own", 0, 10, 1)
	s.rounds(1)
	s.want("more", 10, 60, 1)
	s.rounds(1)
	s.now = s.now.Add(time.Hour)
	s.rounds(1) // the next retry without a reason is a minute later
	before := s.fakes.services.count()
	for i := range 20 {
		s.want("own", 0, 1, uint32(2+i%6))
		s.rounds(2)
		s.now = s.now.Add(quarantine)
		s.pods("own", 9, 10)
		s.rounds(1)
		txn := s.DB.WriteTxn(s.backs)
		_, _, _ = s.backs.Delete(txn, &backends.Backend{Address: backAddress(9)})
		txn.Commit()
		s.rounds(1)
	}
	require.Equal(t, 20, s.fakes.services.count()-before)
	require.Zero(t, s.served(10, 60))
}

// TestFullMaps_FreedPlaces_FewestFirst: places become free while many frontends wait. As many are written, those of the namespaces with the fewest entries first.
func TestFullMaps_FreedPlaces_FewestFirst(t *testing.T) {
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
	before := s.fakes.services.count()
	s.without(0, 6)
	s.rounds(4)
	require.Equal(t, []int{10, 8, 2}, []int{s.served(0, 60), s.served(100, 140), s.served(200, 202)})
	require.Equal(t, 2*6, s.fakes.services.count()-before, "six deletions and six writes")
	for i := 104; i < 108; i++ {
		require.Equal(t, 1, s.served(i, i+1), "in the order in which they failed")
	}
	s.without(6, 16)
	s.rounds(4)
	require.Equal(t, []int{9, 9, 2}, []int{s.served(0, 60), s.served(100, 140), s.served(200, 202)})
}

// TestFullSlots_FreedSlots_FitByCount: slots become free while many frontends wait for some.
func TestFullSlots_FreedSlots_FitByCount(t *testing.T) {
	t.Parallel()
	s := newTenants(t, newFakes(200, 40, 0))
	s.pods("large", 1, 30)
	s.want("large", 0, 9, 1, 2, 3, 4)
	s.want("small", 100, 101, 1, 2, 3, 4)
	s.rounds(1)
	s.want("large", 9, 50, 1, 2, 3, 4)
	s.want("small", 101, 150, 5, 6)
	s.rounds(1)
	rejected := s.writer.known.rejected[bpf.MapServiceSlots]
	s.without(0, 2)
	s.now = s.now.Add(maxRetry)
	s.rounds(1)
	s.now = s.now.Add(quarantine)
	s.rounds(4)
	require.Equal(t, []int{7, 5}, []int{s.served(0, 50), s.served(100, 150)})
	require.LessOrEqual(t, s.writer.known.rejected[bpf.MapServiceSlots]-rejected, uint64(probe))
}

// TestFullBackends_FreedPlaces_FewestFirst: backends of two namespaces wait for places. Only frontends of a namespace that gets one are written again.
func TestFullBackends_FreedPlaces_FewestFirst(t *testing.T) {
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
	before := s.fakes.services.count()
	txn := s.DB.WriteTxn(s.backs)
	_, _, _ = s.backs.Delete(txn, &backends.Backend{Address: backAddress(1), ID: 1})
	txn.Commit()
	s.rounds(3)
	require.NotZero(t, s.fakes.backends.get(103))
	require.Zero(t, s.fakes.backends.get(9))
	require.Equal(t, 1, s.fakes.services.count()-before, "frontends of large are not written")
}
