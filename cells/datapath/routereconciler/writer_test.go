package routereconciler

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestWriter_Update_AgreesWithReplace randomly changes single routes of two owners. The route of another owner stays, and the update returns an error.
func TestWriter_Update_AgreesWithReplace(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	table, err := desiredroutes.NewTable(db)
	require.NoError(t, err)
	w := newWriter(db, table)
	w.Expect("a")
	want := map[string]string{} // owner and device by destination
	errors := 0
	for range 2000 {
		owner := []string{"a", "b"}[random.IntN(2)]
		var put, remove []desiredroutes.Route
		contested := false
		for i := range byte(6) {
			r := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, 0, 0}), 16), Device: []string{"eth0", "eth1"}[random.IntN(2)]}
			other := want[r.Dst.String()] != "" && !strings.HasPrefix(want[r.Dst.String()], owner)
			switch random.IntN(4) {
			case 0:
				put = append(put, r)
				if contested = contested || other; !other {
					want[r.Dst.String()] = owner + " " + r.Device
				}
			case 1:
				remove = append(remove, r)
				if !other {
					delete(want, r.Dst.String())
				}
			}
		}
		err := w.Update(owner, put, remove)
		require.Equal(t, contested, err != nil, "%v", err)
		have := map[string]string{}
		for row := range table.All(db.ReadTxn()) {
			have[row.Dst.String()] = row.Owner + " " + row.Device
		}
		require.Equal(t, want, have)
		if contested {
			errors++
		}
		done, _ := table.Initialized(db.ReadTxn())
		require.False(t, done, "the owner has not said that these are all")
	}
	require.NotZero(t, errors)
	require.NoError(t, w.Replace("a", nil))
	done, _ := table.Initialized(db.ReadTxn())
	require.True(t, done)
}
