package servicemaps

import (
	"slices"
	"testing"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// remove removes the row of a backend, assigns other backends to a frontend in the same transaction, and makes a pass.
func (s *slotted) remove(id uint32, i int, ids ...uint32) {
	txn := s.DB.WriteTxn(s.backs)
	_, _, _ = s.backs.Delete(txn, &backends.Backend{Address: backAddress(id), ID: id})
	txn.Commit()
	s.want(i, ids...)
}

// expectList expects that exactly these backends get the connections of a frontend.
func (s *slotted) expectList(i int, when string, want ...uint32) {
	s.Helper()
	f := s.Maps.Slots.(*fake[uint32, uint32])
	service := s.Maps.Services.(*fake[bpf.ServiceKey, bpf.Service]).get(bpf.NewServiceKey(frontAddress(i), bpf.ScopeExternal))
	var have []uint32
	for at := service.First; at < service.First+service.Count; at++ {
		have = append(have, f.get(at))
	}
	if slices.Sort(have); !slices.Equal(have, want) {
		s.Errorf("%s: frontend %d has backends %v, want %v", when, i, have, want)
	}
}

// TestFullSlots_RemovedBackend_GetsNoConnections: all slots are in use, and a frontend loses a backend. Its own slots suffice.
func TestFullSlots_RemovedBackend_GetsNoConnections(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2)
	s.want(2, 3, 4, 5, 6, 7, 8)
	s.remove(1, 1, 2)
	s.expectList(1, "at once", 2)
	s.expect(1, reconciler.StatusKindDone, "at once")
	if s.backend(1) == (bpf.Backend{}) {
		t.Error("the backend was removed while a program may still read its id")
	}
	s.pass(quarantine)
	if s.backend(1) != (bpf.Backend{}) || s.writer.known.slots.runs.used != 7 {
		t.Errorf("after the quarantine the map has %+v, and %d slots are in use", s.backend(1), s.writer.known.slots.runs.used)
	}
	s.want(1, 2, 9)
	s.expectList(1, "with the free slot behind its own", 2, 9)
	s.expect(1, reconciler.StatusKindDone, "with the free slot behind its own")
}

func (s *slotted) backend(id uint32) bpf.Backend {
	return s.Maps.Backends.(*fake[uint32, bpf.Backend]).get(id)
}

// TestFullSlots_Rollout_UsesOwnSlots: a frontend gets more backends than it has slots, and loses another one.
func TestFullSlots_Rollout_UsesOwnSlots(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2)
	s.want(2, 3, 4, 5, 6, 7, 8)
	s.remove(1, 1, 2, 9, 10)
	for range 3 {
		s.expectList(1, "while the map is full", 2, 9)
		s.expect(1, reconciler.StatusKindError, "while the map is full")
		s.pass(maxRetry)
	}
	s.want(2, 3)
	s.pass(quarantine)
	s.expectList(1, "with free slots", 2, 9, 10)
}

// TestFullSlots_FailedOverwrite_Recovers: the entry, and then a slot, cannot be written while slots are overwritten.
func TestFullSlots_FailedOverwrite_Recovers(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2, 3)
	s.want(2, 4, 5, 6, 7, 8)
	services, slots := s.Maps.Services.(*fake[bpf.ServiceKey, bpf.Service]), s.Maps.Slots.(*fake[uint32, uint32])
	services.fail(func() bool { return true })
	s.remove(1, 1, 2, 3)
	services.fail(nil)
	slots.fail(func() bool { return true })
	s.pass(maxRetry)
	if s.backend(1) == (bpf.Backend{}) {
		t.Error("the backend was removed while slots may name it")
	}
	slots.fail(nil)
	s.pass(maxRetry)
	s.expectList(1, "after the failures", 2, 3)
	s.pass(quarantine)
	if s.backend(1) != (bpf.Backend{}) || s.writer.known.slots.runs.used != 7 || len(s.writer.known.slots.displaced) > 0 {
		t.Errorf("after the quarantine the map has %+v, and %d slots are in use", s.backend(1), s.writer.known.slots.runs.used)
	}
}

// TestFullBackends_Rollout_RemovedBackendsGetNoConnections: all backends of a frontend are replaced, and no new one fits into the map until the removed ones
// have left it.
func TestFullBackends_Rollout_RemovedBackendsGetNoConnections(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2)
	s.Maps.Backends.(*fake[uint32, bpf.Backend]).size = 10
	txn := s.DB.WriteTxn(s.backs, s.Frontends.Table)
	for id := range uint32(2) {
		_, _, _ = s.backs.Delete(txn, &backends.Backend{Address: backAddress(id + 1), ID: id + 1})
		_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(id + 11), ID: id + 11, State: backends.Active, Services: []string{"shop/web"}})
	}
	_, _, _ = s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(1), ID: 101, Service: "shop/web", Backends: []uint32{11, 12},
		Status: reconciler.StatusPending()})
	txn.Commit()
	s.step(s.now)
	s.expectList(1, "while the map is full")
	s.pass(quarantine)
	s.pass(minRetry)
	s.expectList(1, "after the quarantine", 11, 12)
}

// TestFullBackends_Rollout_KeepsBackendsWithRows: a previous backend that still has a row is better than none.
func TestFullBackends_Rollout_KeepsBackendsWithRows(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2)
	s.want(2, 1)
	s.Maps.Backends.(*fake[uint32, bpf.Backend]).size = 10
	txn := s.DB.WriteTxn(s.backs)
	_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(11), ID: 11, State: backends.Active, Services: []string{"shop/web"}})
	txn.Commit()
	s.remove(2, 1, 11)
	s.expectList(1, "while the map is full", 1)
	s.expectList(2, "while the map is full", 1)
}

// TestFullMaps_ChangesPrecedeRetries: entries become free in the pass of a change. The changed rows get them, not the rows that failed before.
func TestFullMaps_ChangesPrecedeRetries(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2, 3, 4, 5, 6, 7, 8)
	s.want(2, 9)
	s.expect(2, reconciler.StatusKindError, "while the map is full")
	s.want(1, 1, 2, 3, 4, 5, 6, 7)
	s.now = s.now.Add(maxRetry)
	s.want(3, 10)
	s.expectList(3, "after its change", 10)
	s.expectList(2, "after that change")

	s.Maps.Backends.(*fake[uint32, bpf.Backend]).size = 10
	insert := func(id uint32) {
		txn := s.DB.WriteTxn(s.backs)
		_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(id), ID: id, State: backends.Active, Services: []string{"shop/web"}})
		txn.Commit()
	}
	insert(11)
	s.pass(0)
	s.Maps.Backends.(*fake[uint32, bpf.Backend]).size = 11
	s.now = s.now.Add(maxRetry)
	insert(12)
	s.pass(0)
	if s.backend(12) == (bpf.Backend{}) || s.backend(11) != (bpf.Backend{}) {
		t.Error("the new backend is not in the map, or the one that failed before is")
	}
}
