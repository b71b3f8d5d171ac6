package mapreconciler

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// A large map is read in every second or later run, and in the next run after a failed read.
func TestCheck_LargeMapsAreReadLessOften(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ entries, runs, want int }{{0, 6, 6}, {1000, 6, 6}, {1001, 6, 3}, {5000, 10, 2}, {20_000, 40, 2}} {
		db := statedb.New()
		table, err := ipcache.NewTable(db)
		require.NoError(t, err)
		have := map[netip.Prefix]bool{}
		txn := db.WriteTxn(table)
		for i := range c.entries {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
			have[prefix] = true
			_, _, err := table.Insert(txn, ipcache.NewEntry(ipcache.Claim{Prefix: prefix}, "test").WithStatus(reconciler.StatusDone()))
			require.NoError(t, err)
		}
		txn.Commit()
		read, failing := 0, errors.New("cannot be read, says the test")
		check := Check[*ipcache.Entry, netip.Prefix, bool]{Watch: drift.Watch{DB: db}, Table: table, Key: func(e *ipcache.Entry) netip.Prefix { return e.Prefix() },
			Dump: func() (map[netip.Prefix]bool, error) {
				if failing != nil {
					return nil, failing
				}
				read++
				all := map[netip.Prefix]bool{}
				for p := range have {
					all[p] = true
				}
				return all, nil
			},
			Differs: func(all map[netip.Prefix]bool, e *ipcache.Entry) string {
				return Difference(e.Prefix(), true, all[e.Prefix()])
			}}
		require.ErrorIs(t, check.Run(t.Context()), failing)
		failing = nil
		for range c.runs {
			require.NoError(t, check.Run(t.Context()))
		}
		require.Equal(t, c.want, read, "%d entries", c.entries)
	}
}
