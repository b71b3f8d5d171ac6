package rootwatch_test

import (
	"iter"
	"strconv"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/rootwatch"
	"github.com/waggle-net/waggle/pkg/testseed"
)

type row struct {
	Name   string
	Number int
}

func (*row) TableHeader() []string { return []string{"Name", "Number"} }
func (r *row) TableRow() []string  { return []string{r.Name, strconv.Itoa(r.Number)} }

var byName = indexes.Unique("name", indexes.String, func(r *row) string { return r.Name })
var byNumber = indexes.Shared("number", indexes.Int, func(r *row) int { return r.Number })

func newTable(t *testing.T, db *statedb.DB, name string) statedb.RWTable[*row] {
	t.Helper()
	table, err := statedb.NewTable(db, name, byName, byNumber)
	require.NoError(t, err)
	return table
}

func put(t *testing.T, db *statedb.DB, table statedb.RWTable[*row], rows ...*row) {
	t.Helper()
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for _, r := range rows {
		_, _, err := table.Insert(txn, r)
		require.NoError(t, err)
	}
	txn.Commit()
}

func closed(watch <-chan struct{}) bool {
	select {
	case <-watch:
		return true
	default:
		return false
	}
}

// A change of one row closes the channel of another row only if the table has a single channel.
func TestOnly_RowsShareOneChannel(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	usual, single := newTable(t, db, "usual"), newTable(t, db, "single")
	require.NoError(t, rootwatch.Only(db, single))
	for table, want := range map[statedb.RWTable[*row]]bool{usual: false, single: true} {
		put(t, db, table, &row{"a", 1}, &row{"b", 1}, &row{"c", 1})
		txn := db.ReadTxn()
		_, _, changed, found := table.GetWatch(txn, byName.Query("a"))
		require.True(t, found)
		_, listChanged := table.ListWatch(txn, byName.Query("a"))
		_, all := table.AllWatch(txn)
		put(t, db, table, &row{"b", 2})
		require.Equal(t, want, closed(changed), table.Name())
		require.Equal(t, want, closed(listChanged), table.Name())
		require.True(t, closed(all), table.Name())
	}
}

// Random changes in large and small transactions have the same result in a table with a single channel, and each of its channels closes after a change.
func TestOnly_AgreesWithUsualTable(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	usual, single := newTable(t, db, "usual"), newTable(t, db, "single")
	require.NoError(t, rootwatch.Only(db, single))
	for range 500 {
		before := db.ReadTxn()
		name := strconv.Itoa(random.IntN(300))
		_, _, rowChanged, _ := single.GetWatch(before, byName.Query(name))
		_, prefixChanged := single.PrefixWatch(before, byName.Query(name))
		_, numberChanged := single.ListWatch(before, byNumber.Query(1))
		txn := db.WriteTxn(usual, single)
		for range random.IntN(50) {
			r, remove := row{strconv.Itoa(random.IntN(300)), random.IntN(3)}, random.IntN(2) == 0
			for _, table := range []statedb.RWTable[*row]{usual, single} {
				own, err := r, error(nil)
				if remove {
					_, _, err = table.Delete(txn, &own)
				} else {
					_, _, err = table.Insert(txn, &own)
				}
				require.NoError(t, err)
			}
		}
		txn.Commit()
		after := db.ReadTxn()
		changed := single.Revision(before) != single.Revision(after)
		require.Equal(t, changed, closed(rowChanged))
		require.Equal(t, changed, closed(prefixChanged))
		require.Equal(t, changed, closed(numberChanged))
		require.Equal(t, rows(usual.All(after)), rows(single.All(after)))
		require.Equal(t, rows(usual.List(after, byName.Query(name))), rows(single.List(after, byName.Query(name))))
		require.Equal(t, rows(usual.List(after, byNumber.Query(1))), rows(single.List(after, byNumber.Query(1))))
		require.Equal(t, rows(usual.Prefix(after, byName.Query(name))), rows(single.Prefix(after, byName.Query(name))))
		require.Equal(t, rows(usual.LowerBound(after, byName.Query(name))), rows(single.LowerBound(after, byName.Query(name))))
	}
}

func rows(all iter.Seq2[*row, statedb.Revision]) (list []row) {
	for r := range all {
		list = append(list, *r)
	}
	return list
}

func TestOnly_TableInUse_IsAnError(t *testing.T) {
	t.Parallel()
	db, other := statedb.New(), statedb.New()
	table := newTable(t, db, "single")
	newTable(t, other, "other")
	require.ErrorContains(t, rootwatch.Only(other, table), "not found")
	put(t, db, table, &row{"a", 1})
	require.ErrorContains(t, rootwatch.Only(db, table), "has 1 rows")
}
