package endpointstate

import (
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// An id must not be reused while a row of its former endpoint is left.
func TestCompute_DeletedEndpoint_KeptUntilLastRowIsRemoved(t *testing.T) {
	t.Parallel()
	drop := map[string]func(c *controller, txn statedb.WriteTxn){
		"facts":       func(c *controller, txn statedb.WriteTxn) { remove(t, txn, c.Facts) },
		"links":       func(c *controller, txn statedb.WriteTxn) { remove(t, txn, c.Links) },
		"addresses":   func(c *controller, txn statedb.WriteTxn) { remove(t, txn, c.Addresses) },
		"attachments": func(c *controller, txn statedb.WriteTxn) { remove(t, txn, c.Attachments) },
	}
	for last := range drop {
		c := world(t, 1)
		pass := func() endpointstates.State {
			require.NoError(t, c.commit(c.fullPass(time.Now()), false))
			state, _, found := c.States.Get(c.DB.ReadTxn(), endpointstates.ByID(1))
			if !found {
				return unborn
			}
			return state.State
		}
		change := func(do func(txn statedb.WriteTxn)) {
			txn := c.DB.WriteTxn(c.Endpoints, c.Facts, c.Links, c.Addresses, c.Attachments)
			defer txn.Commit()
			do(txn)
		}
		require.Equal(t, endpointstates.Ready, pass())
		change(func(txn statedb.WriteTxn) {
			remove(t, txn, c.Endpoints)
			for name, rows := range drop {
				if name != last {
					rows(c, txn)
				}
			}
		})
		require.Equal(t, endpointstates.Disconnecting, pass(), last)
		require.Equal(t, endpointstates.Disconnecting, pass(), last)
		change(func(txn statedb.WriteTxn) { drop[last](c, txn) })
		require.Equal(t, endpointstates.Disconnected, pass(), last)
		require.Equal(t, unborn, pass(), last)
	}
}

// remove deletes all rows of a table.
func remove[R any](t *testing.T, txn statedb.WriteTxn, table statedb.Table[R]) {
	t.Helper()
	require.NoError(t, table.(statedb.RWTable[R]).DeleteAll(txn))
}
