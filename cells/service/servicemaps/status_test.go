package servicemaps

import (
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// TestInForce_IndependentOfStatus: a frontend is in force without a backend that does not fit into the map, and is not in force without enough slots.
func TestInForce_IndependentOfStatus(t *testing.T) {
	t.Parallel()
	f := newFakes(20, 8, 0)
	f.backends.size = 1
	a := newAgent(t, f)
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	for id := range uint32(2) {
		_, _, _ = a.backs.Insert(txn, &backends.Backend{Address: backAddress(id + 1), ID: id + 1, State: backends.Active, Services: []string{"shop/web"}})
	}
	many := make([]uint32, 9) // more than the eight slots
	for i := range many {
		many[i] = 1
	}
	for i, ids := range [][]uint32{{1}, {1, 2}, many} {
		_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(i), ID: uint32(i + 1), Service: "shop/web", Backends: ids,
			Status: reconciler.StatusPending()})
	}
	txn.Commit()
	a.completeTables()
	a.step(time.Unix(1000, 0))
	for i, want := range []struct {
		status  reconciler.StatusKind
		inForce bool
	}{{reconciler.StatusKindDone, true}, {reconciler.StatusKindError, true}, {reconciler.StatusKindError, false}} {
		row, _, _ := a.Frontends.Table.Get(a.DB.ReadTxn(), frontends.ByAddress(frontAddress(i)))
		if row.Status.Kind != want.status || row.InForce != want.inForce || row.Applied > 0 != want.inForce {
			t.Errorf("frontend %d: %s (%s), in force %t after %d revisions, want %s, in force %t", i, row.Status.Kind, row.Status.GetError(),
				row.InForce, row.Applied, want.status, want.inForce)
		}
	}
}

// TestApplied_GrowsWhileTheRowChanges: a row that changes in each round is never in force itself, but counts its previous revisions that were.
func TestApplied_GrowsWhileTheRowChanges(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	get := func() *frontends.Frontend {
		row, _, _ := s.Frontends.Table.Get(s.DB.ReadTxn(), frontends.ByAddress(frontAddress(1)))
		return row
	}
	next := uint32(2)
	s.Maps.Services.(*fake[bpf.ServiceKey, bpf.Service]).after = func() {
		txn := s.DB.WriteTxn(s.Frontends.Table)
		row := get().Clone()
		row.Backends, row.Status, row.InForce = []uint32{next}, reconciler.StatusPending(), false
		_, _, _ = s.Frontends.Table.Insert(txn, row)
		txn.Commit()
		next++
	}
	s.want(1, 1)
	for round := range uint64(4) {
		if row := get(); row.Status.Kind != reconciler.StatusKindPending || row.InForce || row.Applied != round+1 {
			t.Errorf("round %d: %s, in force %t, %d revisions", round, row.Status.Kind, row.InForce, row.Applied)
		}
		s.pass(time.Second)
	}
}
