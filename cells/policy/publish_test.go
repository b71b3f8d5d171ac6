package policy

import (
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
)

// A snapshot has an identity of which no watch channel has told yet, as for a moment during each commit. It is none that policies know,
// and its endpoint does not wait for ever.
func TestPass_SnapshotAheadOfItsNotice(t *testing.T) {
	t.Parallel()
	w := newBench(t, 3, 1)
	number := &identities.Identity{ID: 300, Labels: labelsOf(9, 9)}
	txn := w.DB.WriteTxn(w.identities)
	defer txn.Abort()
	_, _, err := w.identities.Insert(txn, number)
	require.NoError(t, err)
	w.in.read(txn, statedb.NewWatchSet(), time.Now())
	w.pass(txn, statedb.NewWatchSet())
	progress, _, _ := w.Progress.Get(w.DB.ReadTxn(), policyprogress.Row)
	require.Less(t, progress.Identities, w.identities.Revision(txn), "policies do not know the identity yet")
	txn.Commit()

	w.add(t, 44) // endpoint 45 has that identity, 256 + 44
	w.step(t)
	row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(45))
	require.True(t, found)
	require.Equal(t, uint32(300), row.Identity)
}
