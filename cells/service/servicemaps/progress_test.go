package servicemaps

import (
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// TestRun_LongPass_IsNoStall: a first pass on a busy node takes minutes. It does not count as a stall, so the agent is not restarted.
func TestRun_LongPass_IsNoStall(t *testing.T) {
	t.Parallel()
	f := newFakes(200, 600, 0)
	a := newAgent(t, f)
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	for i := range 15 {
		_, _, _ = a.backs.Insert(txn, &backends.Backend{Address: backAddress(uint32(i + 1)), ID: uint32(i + 1), State: backends.Active, Services: []string{"shop/web"}})
		_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(i), ID: uint32(100 + i), Service: "shop/web",
			Backends: []uint32{uint32(i + 1)}, Affinity: 60, Status: reconciler.StatusPending()})
	}
	txn.Commit()
	pass := celltest.NewLongPass(a.DB)
	f.backends.after, f.slots.after, f.members.after, f.services.after = pass.Piece, pass.Piece, pass.Piece, pass.Piece
	require.Equal(t, 2*time.Minute, pass.Run(t, a.run))
}

// TestPass_ManyTables_ReportsProgress: the computation of a Maglev table takes milliseconds, and a pass may need thousands of tables.
func TestPass_ManyTables_ReportsProgress(t *testing.T) {
	t.Parallel()
	a, marks := newAgent(t, newFakes(200, 600, 12)), 0
	a.writer.alive = func() { marks++ }
	txn := a.DB.WriteTxn(a.Frontends.Table)
	for i := range 100 {
		_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(i), ID: uint32(100 + i), Service: "shop/web",
			Status: reconciler.StatusPending()})
	}
	txn.Commit()
	a.step(time.Unix(1000, 0))
	require.GreaterOrEqual(t, marks, 100)
}
