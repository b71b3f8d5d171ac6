package k8s

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// TestAPIServerSlice_ChannelIgnoresOtherSlices checks that readers of the addresses of API servers do not run for each change of a Service.
func TestAPIServerSlice_ChannelIgnoresOtherSlices(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := NewEndpointSliceTable(db)
	require.NoError(t, err)
	put := func(row *EndpointSlice) {
		txn := db.WriteTxn(table)
		defer txn.Commit()
		_, _, err := table.Insert(txn, row)
		require.NoError(t, err)
	}
	closed := func(watch <-chan struct{}) bool {
		select {
		case <-watch:
			return true
		default:
			return false
		}
	}
	other := func(uid string) *EndpointSlice {
		return &EndpointSlice{Namespace: "default", Name: "kubernetes-x", Service: "kubernetes", UID: uid}
	}
	for _, uid := range []string{"", "1", "2"} { // first without the slice
		_, _, watch, found := table.GetWatch(db.ReadTxn(), APIServerSlice)
		require.Equal(t, uid != "", found)
		put(other("a" + uid))
		put(other("b" + uid))
		require.False(t, closed(watch))
		put(&EndpointSlice{Namespace: "default", Name: "kubernetes", Service: "kubernetes", UID: "u" + uid})
		require.True(t, closed(watch))
		row, _, found := table.Get(db.ReadTxn(), APIServerSlice)
		require.True(t, found)
		require.Equal(t, "u"+uid, row.UID)
	}
	txn := db.WriteTxn(table)
	_, _, watch, _ := table.GetWatch(txn, APIServerSlice)
	_, _, err = table.Delete(txn, &EndpointSlice{Namespace: "default", Name: "kubernetes"})
	require.NoError(t, err)
	txn.Commit()
	require.True(t, closed(watch))
	_, _, found := table.Get(db.ReadTxn(), APIServerSlice)
	require.False(t, found)
}
