package servicemaps

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// slotted is an agent with ten backends and a map of eight slots.
type slotted struct {
	*testing.T
	*agent
	now time.Time
}

func newSlotted(t *testing.T) *slotted {
	s := &slotted{t, newAgent(t, newFakes(20, 8, 0)), time.Unix(1000, 0)}
	txn := s.DB.WriteTxn(s.backs)
	for id := range uint32(10) {
		_, _, _ = s.backs.Insert(txn, &backends.Backend{Address: backAddress(id + 1), ID: id + 1, State: backends.Active, Services: []string{"shop/web"}})
	}
	txn.Commit()
	s.completeTables()
	return s
}

// want assigns backends to a frontend, and makes a pass.
func (s *slotted) want(i int, ids ...uint32) {
	txn := s.DB.WriteTxn(s.Frontends.Table)
	_, _, _ = s.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(i), ID: uint32(100 + i), Service: "shop/web", Backends: ids,
		Status: reconciler.StatusPending()})
	txn.Commit()
	s.step(s.now)
}

func (s *slotted) pass(after time.Duration) {
	s.now = s.now.Add(after)
	s.step(s.now)
}

func (s *slotted) expect(i int, kind reconciler.StatusKind, when string) {
	s.Helper()
	row, _, _ := s.Frontends.Table.Get(s.DB.ReadTxn(), frontends.ByAddress(frontAddress(i)))
	if row.Status.Kind != kind {
		s.Errorf("%s: frontend %d is %s (%s), want %s", when, i, row.Status.Kind, row.Status.GetError(), kind)
	}
	if rejected := s.writer.known.rejected[bpf.MapServiceSlots] > 0; rejected != (kind == reconciler.StatusKindError) {
		s.Errorf("%s: something counts as refused: %t", when, rejected)
	}
	if text := row.Status.GetError(); kind == reconciler.StatusKindError && !strings.Contains(text, "--bpf-lb-map-max") {
		s.Errorf("%s: %q names no flag", when, text)
	}
}

// TestFullSlots_ReportedWhileOtherRowsChange: the quarantined slots would not suffice.
func TestFullSlots_ReportedWhileOtherRowsChange(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2, 3, 4, 5)
	s.want(2, 6)
	s.want(2, 7)
	if len(s.writer.known.waiting) == 0 {
		t.Fatal("nothing is in quarantine")
	}
	s.want(3, 1, 2, 3, 4)
	s.expect(3, reconciler.StatusKindError, "at once")
}

// TestFullSlots_WaitForQuarantine: the quarantined slots suffice.
func TestFullSlots_WaitForQuarantine(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.want(1, 1, 2, 3, 4, 5)
	s.want(1)
	s.want(3, 1, 2, 3, 4)
	s.expect(3, reconciler.StatusKindPending, "at once")
	s.pass(quarantine - time.Nanosecond)
	s.expect(3, reconciler.StatusKindPending, "a moment before")
	s.pass(time.Nanosecond)
	s.expect(3, reconciler.StatusKindDone, "when it has left")
	if len(s.writer.known.later.since) != 0 {
		t.Errorf("%d rows still wait", len(s.writer.known.later.since))
	}
}

// TestFullSlots_ReportedWhenOtherRowsGetSlots: enough slots are always quarantined, but never free.
func TestFullSlots_ReportedWhenOtherRowsGetSlots(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.writer.known.slots.runs.take(0, 8)
	of := s.writer.known.namespaces.of("other/web")
	of.slots = 8
	s.writer.known.retire(&entry{owner: of, ours: true, value: bpf.Service{Count: 1}}, 0, 0, s.now) // too few
	s.writer.known.retire(&entry{owner: of, ours: true, value: bpf.Service{First: 1, Count: 7}}, 0, 0, s.now.Add(time.Hour))
	s.want(3, 1, 2, 3, 4)
	s.pass(quarantine - time.Nanosecond)
	s.expect(3, reconciler.StatusKindPending, "while it has waited for less than one period")
	s.pass(time.Nanosecond)
	s.expect(3, reconciler.StatusKindError, "after one")
	s.pass(quarantine / 2)
	s.expect(3, reconciler.StatusKindError, "after another attempt")
	gone := frontends.Frontend{Address: frontAddress(3)}
	txn := s.DB.WriteTxn(s.Frontends.Table)
	_, _, _ = s.Frontends.Table.Delete(txn, &gone)
	txn.Commit()
	s.pass(0)
	if len(s.writer.known.later.since) != 0 {
		t.Errorf("%d rows still wait", len(s.writer.known.later.since))
	}
}

// TestVerify_SmallerArray_IgnoresSlotsBeyondIt: the array was created again with fewer slots than an entry of the previous run names, and there are too few slots for
// its row, so the entry stays.
func TestVerify_SmallerArray_IgnoresSlotsBeyondIt(t *testing.T) {
	t.Parallel()
	f, key := newFakes(20, 2, 0), bpf.NewServiceKey(frontAddress(1), bpf.ScopeExternal)
	f.services.entries[key] = bpf.Service{Id: 101, Count: 5}
	a := newAgent(t, f)
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	for id := range uint32(5) {
		_, _, _ = a.backs.Insert(txn, &backends.Backend{Address: backAddress(id + 1), ID: id + 1, State: backends.Active, Services: []string{"shop/web"}})
	}
	_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(1), ID: 101, Service: "shop/web", Backends: []uint32{1, 2, 3, 4, 5},
		Status: reconciler.StatusPending()})
	txn.Commit()
	a.completeTables()
	a.step(time.Unix(1000, 0))
	if _, stays := f.services.entries[key]; !stays {
		t.Fatal("the entry was removed")
	}
	if a.verify(a.DB.ReadTxn()); a.unread != nil || len(a.found) > 0 {
		t.Errorf("%v, %v", a.found, a.unread)
	}
}
