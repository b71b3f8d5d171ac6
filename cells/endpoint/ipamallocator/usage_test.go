package ipamallocator

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestTally_MatchesFullCount inserts, changes and deletes rows of both families, inside the range and outside it, some of them between two updates, and
// compares the tally with a full count.
func TestTally_MatchesFullCount(t *testing.T) {
	t.Parallel()
	random, db := testseed.New(t), statedb.New()
	table, err := ipamaddresses.NewTable(db)
	require.NoError(t, err)
	a := &allocator{db: db, table: table}
	feed, err := a.followAddresses()
	require.NoError(t, err)
	defer feed.Close()
	ranges := [2]netip.Prefix{netip.MustParsePrefix("10.0.0.0/29"), netip.MustParsePrefix("fd00::/125")}
	states := []ipamaddresses.State{ipamaddresses.Allocated, ipamaddresses.Claimed, ipamaddresses.Reserved, ipamaddresses.Excluded, ipamaddresses.Quarantined}
	have := tallyOf(db.ReadTxn(), table, ranges)
	for round := range 2000 {
		txn := db.WriteTxn(table)
		for range 1 + random.IntN(3) {
			row := address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(12))}), State: states[random.IntN(len(states))]}
			if random.IntN(2) == 0 {
				row.Addr = netip.MustParseAddr(fmt.Sprintf("fd00::%x", random.IntN(12)))
			}
			if _, _, err := table.Insert(txn, row); random.IntN(3) == 0 {
				_, _, err = table.Delete(txn, row)
				require.NoError(t, err)
			} else {
				require.NoError(t, err)
			}
		}
		txn.Commit()
		read := db.ReadTxn()
		have.update(feed.UpTo(read, statedb.NewWatchSet()))
		require.Equal(t, tallyOf(read, table, ranges), have, "round %d", round)
		for i, family := range []string{"ipv4", "ipv6"} {
			require.Equal(t, ipam.Count(read, table, family, ranges[i]), have.usages[i], "round %d", round)
		}
	}
}

// BenchmarkUsage measures the count for an address that is allocated and released again, beside n other addresses.
func BenchmarkUsage(b *testing.B) {
	for _, n := range []int{10, 200, 1000} {
		begin := func(b *testing.B) (db *statedb.DB, table table, change func() []statedb.Change[address], ranges [2]netip.Prefix) {
			db = statedb.New()
			table, err := ipamaddresses.NewTable(db)
			require.NoError(b, err)
			feed, err := (&allocator{db: db, table: table}).followAddresses()
			require.NoError(b, err)
			b.Cleanup(feed.Close)
			put := func(i int, state ipamaddresses.State) {
				txn := db.WriteTxn(table)
				defer txn.Commit()
				_, _, _ = table.Insert(txn, address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), State: state, Since: time.Now()})
			}
			for i := range n {
				put(i, ipamaddresses.Claimed)
			}
			odd := false
			return db, table, func() []statedb.Change[address] {
				odd = !odd
				put(n, map[bool]ipamaddresses.State{true: ipamaddresses.Claimed, false: ipamaddresses.Quarantined}[odd])
				return feed.UpTo(db.ReadTxn(), statedb.NewWatchSet())
			}, [2]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")}
		}
		b.Run(fmt.Sprint("changed/", n), func(b *testing.B) {
			db, table, change, ranges := begin(b)
			t := tallyOf(db.ReadTxn(), table, ranges)
			for b.Loop() {
				t.update(change())
			}
		})
		b.Run(fmt.Sprint("all/", n), func(b *testing.B) {
			db, table, change, ranges := begin(b)
			for b.Loop() {
				change()
				for i, family := range []string{"ipv4", "ipv6"} {
					ipam.Count(db.ReadTxn(), table, family, ranges[i])
				}
			}
		})
	}
}
