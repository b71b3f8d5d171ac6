package sysctls

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/statedb"
)

func TestLasting_ExcludesPodLinks(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	lasting := func() (names []string) {
		for s := range Lasting(db.ReadTxn(), table) {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		return names
	}
	if names := lasting(); len(names) > 0 {
		t.Errorf("an empty table has %v", names)
	}
	var want []string
	txn := db.WriteTxn(table)
	for i, owner := range []string{"a", "pod-link", OwnerPodLinks, OwnerPodLinks + "-2", OwnerPodLinks + "a", "pod-linkt", "zone", OwnerPodLinks} {
		for j := range 3 {
			name := fmt.Sprint("net/", i, "/", j)
			if _, _, err := table.Insert(txn, &Setting{Name: name, Owner: owner}); err != nil {
				t.Fatal(err)
			}
			if owner != OwnerPodLinks {
				want = append(want, name)
			}
		}
	}
	txn.Commit()
	if names := lasting(); !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	for range Lasting(db.ReadTxn(), table) {
		break
	}
}
