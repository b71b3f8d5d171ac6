package changefeed_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/indexes"
)

type row struct{ id, version uint64 }

func (row) TableHeader() []string { return []string{"ID"} }
func (r row) TableRow() []string  { return []string{strconv.FormatUint(r.id, 10)} }

func newTable(t *testing.T, db *statedb.DB, name string) statedb.RWTable[row] {
	t.Helper()
	table, err := statedb.NewTable(db, name, indexes.Unique("id", indexes.Uint64, func(r row) uint64 { return r.id }))
	require.NoError(t, err)
	return table
}

func follow(t *testing.T, db *statedb.DB, table statedb.RWTable[row]) *changefeed.Feed[row] {
	t.Helper()
	txn := db.WriteTxn(table)
	defer txn.Commit()
	f, err := changefeed.Follow(txn, table)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// Each round is one commit to several tables. A reader that wakes for any of them takes a snapshot, and the feeds return the rows of
// all tables in it. With the iterators of statedb alone, this fails within some thousand rounds.
func TestUpTo_CoversSnapshot(t *testing.T) {
	t.Parallel()
	const rounds = 20000
	db := statedb.New()
	var tables []statedb.RWTable[row]
	var metas []statedb.TableMeta
	var feeds []*changefeed.Feed[row]
	for _, name := range []string{"a", "b", "c", "d"} {
		table := newTable(t, db, name)
		tables, metas, feeds = append(tables, table), append(metas, table), append(feeds, follow(t, db, table))
	}
	var seen atomic.Uint64
	go func() {
		for i := uint64(1); i <= rounds; i++ {
			txn := db.WriteTxn(metas...)
			for _, table := range tables {
				_, _, err := table.Delete(txn, row{id: (i - 1) % 3})
				_, _, err2 := table.Insert(txn, row{id: i % 3, version: i})
				if err := errors.Join(err, err2); err != nil {
					panic(err)
				}
			}
			txn.Commit()
			for i%2 == 0 && seen.Load() < i && t.Context().Err() == nil {
				time.Sleep(time.Microsecond)
			}
		}
	}()
	have := make([]map[uint64]uint64, len(tables))
	for i := range have {
		have[i] = map[uint64]uint64{}
	}
	for seen.Load() < rounds {
		txn, changed := db.ReadTxn(), statedb.NewWatchSet()
		for i, table := range tables {
			for _, change := range feeds[i].UpTo(txn, changed) {
				if have[i][change.Object.id] = change.Object.version; change.Deleted {
					delete(have[i], change.Object.id)
				}
			}
			want := map[uint64]uint64{}
			for r := range table.All(txn) {
				want[r.id] = r.version
				seen.Store(r.version)
			}
			require.Equal(t, want, have[i], "table %s", table.Name())
		}
		if seen.Load() == rounds {
			break
		}
		_, err := changed.Wait(t.Context(), 0)
		require.NoError(t, err)
	}
}

// A reader does not wake without a change: after UpTo has returned all changes, its channel is open, also for an empty table.
func TestUpTo_NoChanges_Waits(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table := newTable(t, db, "a")
	f := follow(t, db, table)
	quiet := func() {
		changed := statedb.NewWatchSet()
		require.Empty(t, f.UpTo(db.ReadTxn(), changed))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := changed.Wait(ctx, 0)
		require.Error(t, err, "woken although nothing has changed")
	}
	quiet()
	quiet()
	insert := func(r row) {
		txn := db.WriteTxn(table)
		_, _, err := table.Insert(txn, r)
		require.NoError(t, err)
		txn.Commit()
	}
	insert(row{1, 1})
	old := db.ReadTxn()
	insert(row{2, 1})
	insert(row{1, 2})
	changed := statedb.NewWatchSet()
	list := f.UpTo(old, changed)
	require.Len(t, list, 1, "what came after the snapshot is handed over")
	require.Equal(t, row{1, 1}, list[0].Object)
	_, err := changed.Wait(t.Context(), 0)
	require.NoError(t, err)
	list = f.UpTo(db.ReadTxn(), changed)
	require.Len(t, list, 2)
	require.Equal(t, []row{{2, 1}, {1, 2}}, []row{list[0].Object, list[1].Object})
	quiet()
	require.Empty(t, f.UpTo(old, statedb.NewWatchSet()), "an older snapshot has nothing new")
	quiet()
}

// TestUpTo_OneChannelPerFeed: a commit to both tables after the snapshot closes the channels of both feeds. With one channel for both, a reader that asks
// after each wait which feed has changes would take a change of one feed for a change of the other, and miss it.
func TestUpTo_OneChannelPerFeed(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	a, b := newTable(t, db, "a"), newTable(t, db, "b")
	feeds := []*changefeed.Feed[row]{follow(t, db, a), follow(t, db, b)}
	insert := func(version uint64) {
		txn := db.WriteTxn(a, b)
		defer txn.Commit()
		for _, table := range []statedb.RWTable[row]{a, b} {
			_, _, err := table.Insert(txn, row{id: 1, version: version})
			require.NoError(t, err)
		}
	}
	insert(1)
	for _, f := range feeds {
		f.UpTo(db.ReadTxn(), statedb.NewWatchSet())
	}
	insert(2)
	txn := db.ReadTxn()
	insert(3)
	sets := []*statedb.WatchSet{statedb.NewWatchSet(), statedb.NewWatchSet()}
	for i, f := range feeds {
		require.Equal(t, uint64(2), f.UpTo(txn, sets[i])[0].Object.version)
	}
	closed, err := sets[0].Wait(t.Context(), 0)
	require.NoError(t, err)
	require.False(t, sets[1].HasAny(closed), "both feeds wait for the same channel")
	_, err = sets[1].Wait(t.Context(), 0)
	require.NoError(t, err)
}
