package endpointstate

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// world returns a controller with tables of n endpoints whose rows are all in the kernel.
func world(tb testing.TB, n int) *controller {
	tb.Helper()
	db := statedb.New()
	states, done, err := newTable(db)
	require.NoError(tb, err)
	eps, err := endpoints.NewTable(db)
	require.NoError(tb, err)
	facts, err := bpfendpoints.NewFactsTable(db)
	require.NoError(tb, err)
	links, err := bpfendpoints.NewLinkTable(db)
	require.NoError(tb, err)
	addresses, err := bpfendpoints.NewAddressTable(db)
	require.NoError(tb, err)
	attached, err := attachments.NewTable(db)
	require.NoError(tb, err)
	numbers, err := identities.NewEndpointTable(db)
	require.NoError(tb, err)
	decided, err := endpointpolicies.NewTable(db)
	require.NoError(tb, err)
	known, err := ipcache.NewTable(db)
	require.NoError(tb, err)
	txn := db.WriteTxn(eps, facts, links, addresses, attached, numbers, decided, known)
	defer txn.Abort()
	ok := reconciler.StatusDone()
	for i := 1; i <= n; i++ {
		id, name := uint16(i), fmt.Sprintf("lxc%012x", i)
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		insert(tb, txn, eps, &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(i), IfName: "eth0", HostIfName: name,
			HostIfIndex: i, IPv4: addr})
		insert(tb, txn, numbers, &identities.EndpointIdentity{EndpointID: id, Attachment: fmt.Sprint(i, ":eth0"), Identity: 5})
		insert(tb, txn, decided, &endpointpolicies.EndpointPolicy{EndpointID: id, Attachment: fmt.Sprint(i, ":eth0"), Identity: 5})
		insert(tb, txn, facts, &bpfendpoints.Facts{ID: id, IfIndex: uint32(i), IPv4: addr, Identity: 5, Status: ok})
		insert(tb, txn, links, &bpfendpoints.Link{IfIndex: uint32(i), ID: id, Status: ok})
		insert(tb, txn, addresses, &bpfendpoints.Address{Addr: addr, ID: id, Owner: "endpoint", Status: ok})
		insert(tb, txn, known, ipcache.NewEntry(ipcache.Claim{Prefix: netip.PrefixFrom(addr, 32), Identity: 5, Source: ipcache.SourceLocal},
			ipcache.OwnerEndpoints).WithStatus(ok))
		insert(tb, txn, attached, &attachments.Attachment{Kind: attachments.PodLink, Device: name, IfIndex: i, Hook: "both",
			EndpointID: id, Status: ok})
	}
	txn.Commit()
	return &controller{initialize: done, params: params{DB: db, States: states, Endpoints: eps, Facts: facts, Links: links,
		Addresses: addresses, Attachments: attached, Identities: numbers, Policies: decided, Ipcache: known}}
}

// fullPass computes the states of all endpoints.
func (c *controller) fullPass(now time.Time) updates {
	txn := c.DB.ReadTxn()
	return c.compute(txn, c.everything(txn), now)
}

func insert[R any](tb testing.TB, txn statedb.WriteTxn, table statedb.RWTable[R], row R) {
	tb.Helper()
	_, _, err := table.Insert(txn, row)
	require.NoError(tb, err)
}

func TestCompute_SecondPassWritesNothing(t *testing.T) {
	t.Parallel()
	c := world(t, 10)
	u := c.fullPass(time.Unix(1, 0))
	require.Len(t, u.insert, 10)
	require.NoError(t, c.commit(u, true))
	for row := range c.States.All(c.DB.ReadTxn()) {
		require.Equal(t, endpointstates.Ready, row.State)
	}
	u = c.fullPass(time.Unix(2, 0))
	require.Empty(t, u.insert)
	require.Empty(t, u.remove)
}

// If a new endpoint gets an id before the state of the old endpoint was removed, its state starts from the beginning.
func TestCompute_ReusedID_ResetsState(t *testing.T) {
	t.Parallel()
	c := world(t, 1)
	require.NoError(t, c.commit(updates{insert: []*endpointstates.EndpointState{{ID: 1, Attachment: "old:eth0",
		State: endpointstates.Disconnecting, Error: "old"}}}, false))
	u := c.fullPass(time.Unix(1, 0))
	require.Len(t, u.insert, 1)
	require.Equal(t, "1:eth0", u.insert[0].Attachment)
	require.Equal(t, endpointstates.Ready, u.insert[0].State)
	require.Len(t, u.insert[0].Log, 2)
}

func TestAdvance_LogIsBoundedAndKeepsTheNewest(t *testing.T) {
	t.Parallel()
	row := &endpointstates.EndpointState{ID: 1, Attachment: "1:eth0"}
	ep := &endpoints.Endpoint{ID: 1, ContainerID: "1", IfName: "eth0"}
	for i := range 3 * endpointstates.MaxLog {
		row = advance(row, ep, observation{progress: pending, err: fmt.Sprint("failure ", i)}, time.Unix(int64(i), 0))
	}
	require.Len(t, row.Log, endpointstates.MaxLog)
	require.Equal(t, fmt.Sprint("failure ", 3*endpointstates.MaxLog-1), row.Log[endpointstates.MaxLog-1].Message)
}

func TestFailures_NamesAFewAndCountsTheRest(t *testing.T) {
	t.Parallel()
	c := world(t, 0)
	var rows []*endpointstates.EndpointState
	for id := uint16(1); id <= 5; id++ {
		rows = append(rows, &endpointstates.EndpointState{ID: id, Attachment: "a:eth0", Error: "broken"})
	}
	require.NoError(t, c.commit(updates{insert: rows}, false))
	err := failures(c.States.All(c.DB.ReadTxn()))
	require.ErrorContains(t, err, "endpoint 3 (a:eth0): broken\nand 2 more")
}

// BenchmarkFullPass measures the first pass and the periodic pass with 250 endpoints.
func BenchmarkFullPass(b *testing.B) {
	c := world(b, 250)
	require.NoError(b, c.commit(c.fullPass(time.Unix(1, 0)), true))
	b.ReportAllocs()
	for b.Loop() {
		c.fullPass(time.Unix(1, 0))
	}
}

// BenchmarkOneChange measures the pass after a commit of an input, with 250 endpoints. Requests wait for such passes.
func BenchmarkOneChange(b *testing.B) {
	c := world(b, 250)
	require.NoError(b, c.commit(c.fullPass(time.Unix(1, 0)), true))
	b.ReportAllocs()
	for b.Loop() {
		c.compute(c.DB.ReadTxn(), endpointfeed.Marks{7: true}, time.Unix(1, 0))
	}
}

// The full pass finds a change that the feed did not mark.
func TestRun_FullPassFindsMissedChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := world(t, 1)
		health, _ := cell.NewSimpleHealth()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx, health) }()
		synctest.Wait()
		stray := &endpointstates.EndpointState{ID: 9, Attachment: "stray:eth0", State: endpointstates.Ready}
		require.NoError(t, c.commit(updates{insert: []*endpointstates.EndpointState{stray}}, false))
		time.Sleep(2 * endpointfeed.FullPassInterval)
		synctest.Wait()
		require.Equal(t, 1, c.States.NumObjects(c.DB.ReadTxn()))
		cancel()
		require.NoError(t, <-ended)
	})
}

// In a large cluster addresses of other nodes change all the time. They cause no pass; changes of this node's endpoints do.
func TestWait_SkipsEntriesOfOtherNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := world(t, 3)
		f, err := c.subscribe()
		require.NoError(t, err)
		defer f.close()
		changed := statedb.NewWatchSet()
		c.next(f, c.DB.ReadTxn(), changed)
		known, ok := c.Ipcache.(statedb.RWTable[*ipcache.Entry])
		require.True(t, ok)
		put := func(addr string, owner string) {
			t.Helper()
			txn := c.DB.WriteTxn(known)
			defer txn.Commit()
			insert(t, txn, known, ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix(addr), Identity: 7}, owner))
		}
		returned := make(chan bool, 1)
		go func() { full, alive := c.wait(t.Context(), f, changed); returned <- !full && alive }()
		for i := range 3 {
			put(fmt.Sprintf("10.9.0.%d/32", i), ipcache.OwnerCiliumEndpoints)
			put(fmt.Sprintf("10.9.1.%d/32", i), ipcache.OwnerEndpoints) // entry of a deleted endpoint
			synctest.Wait()
			require.Empty(t, returned, "after an address elsewhere")
		}
		put("10.0.0.2/32", ipcache.OwnerEndpoints)
		require.True(t, <-returned)
		marked, all := c.next(f, c.DB.ReadTxn(), statedb.NewWatchSet())
		require.Equal(t, endpointfeed.Marks{2: true}, marked)
		require.False(t, all)
		marked, _ = c.next(f, c.DB.ReadTxn(), statedb.NewWatchSet())
		require.Empty(t, marked)
	})
}

// TestWait_ConcurrentEntryChange_StartsPass: a deleted endpoint changes its attachment and its entry in ipcache at once, after the snapshot of a pass. The next pass
// must not wait for the full pass a minute later.
func TestWait_ConcurrentEntryChange_StartsPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := world(t, 1)
		f, err := c.subscribe()
		require.NoError(t, err)
		defer f.close()
		c.next(f, c.DB.ReadTxn(), statedb.NewWatchSet())
		touch := func() {
			entry := ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Identity: 7, Source: ipcache.SourceLocal}, ipcache.OwnerHost)
			txn := c.DB.WriteTxn(c.Attachments, c.Ipcache)
			defer txn.Commit()
			insert(t, txn, c.Attachments.(statedb.RWTable[*attachments.Attachment]), &attachments.Attachment{Kind: attachments.PodLink, Device: "lxc1", IfIndex: 1, Hook: "both", EndpointID: 1})
			insert(t, txn, c.Ipcache.(statedb.RWTable[*ipcache.Entry]), entry)
		}
		touch()
		txn, changed := c.DB.ReadTxn(), statedb.NewWatchSet()
		touch()
		c.next(f, txn, changed)
		began := time.Now()
		full, alive := c.wait(t.Context(), f, changed)
		require.True(t, alive)
		require.False(t, full, "the change was slept over for %v", time.Since(began))
	})
}
