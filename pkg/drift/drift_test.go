package drift

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// ledger collects the recorded findings.
type ledger []driftrepairs.Finding

func (l *ledger) Record(findings ...driftrepairs.Finding) { *l = append(*l, findings...) }

func TestMark_OnlyUnchangedWrittenRows(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := bpfendpoints.NewLinkTable(db)
	if err != nil {
		t.Fatal(err)
	}
	put := func(ifindex uint32, s reconciler.Status) {
		txn := db.WriteTxn(table)
		defer txn.Commit()
		_, _, _ = table.Insert(txn, &bpfendpoints.Link{IfIndex: ifindex, ID: 1, Status: s})
	}
	for ifindex := range uint32(3) {
		put(ifindex, reconciler.StatusDone())
	}
	put(3, reconciler.StatusError(errors.New("full")))
	put(4, reconciler.StatusPending())
	before := db.ReadTxn()
	put(2, reconciler.StatusDone()) // written after the snapshot

	var counted ledger
	look := func(wrong func(uint32) bool) bool {
		return Mark(Watch{DB: db, Repairs: &counted}, table, before, func(l *bpfendpoints.Link) []driftrepairs.Finding {
			return If(wrong(l.IfIndex), driftrepairs.MapEntry, strconv.Itoa(int(l.IfIndex)), "missing")
		})
	}
	if look(func(ifindex uint32) bool { return ifindex == 3 }) {
		t.Error("a row that failed asks for another look; it is tried again in any case")
	}
	if !look(func(ifindex uint32) bool { return ifindex == 4 }) {
		t.Error("a row that is being written asks for no other look")
	}
	if !look(func(ifindex uint32) bool { return ifindex == 1 || ifindex == 2 }) {
		t.Error("a row that was written since asks for no other look")
	}
	if want := (ledger{{Kind: driftrepairs.MapEntry, What: "1", Found: "missing"}}); !slices.Equal(counted, want) {
		t.Errorf("counted %v, want %v", counted, want)
	}
	want := []string{"Done", "Pending", "Done", "Error", "Pending"}
	for l := range table.All(db.ReadTxn()) {
		if got := l.Status.Kind.String(); got != want[l.IfIndex] {
			t.Errorf("row %d is %s, want %s", l.IfIndex, got, want[l.IfIndex])
		}
	}
}
