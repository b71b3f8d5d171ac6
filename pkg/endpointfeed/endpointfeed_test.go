package endpointfeed

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// If a pass processed unchanged endpoints, the cost of an ADD would grow with the number of pods of the node.
func TestFeed_MarksOnlyEndpointsWithAChange(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	eps, err1 := endpoints.NewTable(db)
	facts, err2 := bpfendpoints.NewFactsTable(db)
	links, err3 := bpfendpoints.NewLinkTable(db)
	addresses, err4 := bpfendpoints.NewAddressTable(db)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatal(err)
		}
	}
	insert := func(id uint16) {
		txn := db.WriteTxn(eps)
		defer txn.Commit()
		ep := &endpoints.Endpoint{ID: id, ContainerID: "c", IfName: string(rune('a' + id))}
		if _, _, err := eps.Insert(txn, ep); err != nil {
			t.Fatal(err)
		}
	}
	insert(1)
	insert(2)
	tables := Tables{Endpoints: eps, Facts: facts, Links: links, Addresses: addresses}
	f, err := Subscribe(db, tables)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	marked := func(want ...uint16) {
		t.Helper()
		got := f.Next(db.ReadTxn(), statedb.NewWatchSet())
		if ids := slices.Sorted(maps.Keys(got)); !slices.Equal(ids, want) {
			t.Fatalf("marked %v, want %v", ids, want)
		}
	}
	marked(1, 2)
	marked()
	txn := db.WriteTxn(facts, links)
	_, _, err1 = facts.Insert(txn, &bpfendpoints.Facts{ID: 2})
	_, _, err2 = links.Insert(txn, &bpfendpoints.Link{IfIndex: 9, ID: 3})
	txn.Commit()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	marked(2, 3)
	txn = db.WriteTxn(facts)
	_, _, err1 = facts.Delete(txn, &bpfendpoints.Facts{ID: 2})
	txn.Commit()
	if err1 != nil {
		t.Fatal(err1)
	}
	marked(2)
}
