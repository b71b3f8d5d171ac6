package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/loop"
)

// row is a row of the test table.
type row struct{ Key, Value string }

func (r *row) Equal(o *row) bool   { return r.Key == o.Key && r.Value == o.Value }
func (*row) TableHeader() []string { return []string{"Key", "Value"} }
func (r *row) TableRow() []string  { return []string{r.Key, r.Value} }

var byKey = indexes.Unique("key", indexes.String, func(r *row) string { return r.Key })

func newTable(t *testing.T) (*statedb.DB, statedb.RWTable[*row]) {
	t.Helper()
	db := statedb.New()
	table, err := statedb.NewTable(db, "rows", byKey)
	if err != nil {
		t.Fatal(err)
	}
	return db, table
}

func insert(t *testing.T, db *statedb.DB, table statedb.RWTable[*row], rows ...*row) {
	t.Helper()
	txn := db.WriteTxn(table)
	for _, r := range rows {
		if _, _, err := table.Insert(txn, r); err != nil {
			t.Error(err)
		}
	}
	txn.Commit()
}

// start runs a loop and returns a function that returns the times of the rounds so far, and one that stops the loop and returns its error.
func start(t *testing.T, db *statedb.DB, o loop.Options, round func(*loop.Round) error) (rounds func() []time.Duration, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	began, ended := time.Now(), make(chan error, 1)
	var times []time.Duration
	go func() {
		ended <- loop.Run(ctx, db, o, func(r *loop.Round) error {
			times = append(times, time.Since(began))
			return round(r)
		})
	}()
	rounds = func() []time.Duration { synctest.Wait(); return times }
	return rounds, func() error { cancel(); return <-ended }
}

func TestRun_ChangesBeginRounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options loop.Options
		want    []time.Duration // changes come at 1 s, 1 s + 1 ms, 1 s + 2 ms and 3 s
	}{
		"at once":     {loop.Options{}, []time.Duration{0, time.Second, time.Second + time.Millisecond, time.Second + 2*time.Millisecond, 3 * time.Second}},
		"after pause": {loop.Options{Pause: 50 * time.Millisecond}, []time.Duration{0, time.Second, time.Second + 50*time.Millisecond, 3 * time.Second}},
		"burst, then after pause": {loop.Options{Pause: 50 * time.Millisecond, Burst: 2},
			[]time.Duration{0, time.Second, time.Second + time.Millisecond, time.Second + 50*time.Millisecond, 3 * time.Second}},
		"settled": {loop.Options{Settle: 50 * time.Millisecond}, []time.Duration{0, time.Second + 50*time.Millisecond, 3*time.Second + 50*time.Millisecond}},
		"interval": {loop.Options{Interval: 1500 * time.Millisecond}, []time.Duration{0, time.Second, time.Second + time.Millisecond, time.Second + 2*time.Millisecond,
			2502 * time.Millisecond, 3 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, table := newTable(t)
				c.options.Tables = []statedb.TableMeta{table}
				rounds, stop := start(t, db, c.options, func(r *loop.Round) error {
					for range loop.All(r, table.ToTable()) {
					}
					return nil
				})
				for i, pause := range []time.Duration{time.Second, time.Millisecond, time.Millisecond, 2*time.Second - 2*time.Millisecond} {
					time.Sleep(pause)
					synctest.Wait()
					insert(t, db, table, &row{Key: "a", Value: strings.Repeat("x", i)})
					synctest.Wait()
				}
				time.Sleep(100 * time.Millisecond)
				if got := rounds(); !slices.Equal(got, c.want) {
					t.Errorf("rounds at %v, want %v", got, c.want)
				}
				if err := stop(); err != nil {
					t.Errorf("a loop that was stopped returned %v", err)
				}
			})
		})
	}
}

func TestRun_WithinBeginsOneEarlierRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := newTable(t)
		n := 0
		rounds, stop := start(t, db, loop.Options{Interval: time.Minute}, func(r *loop.Round) error {
			if n++; n == 1 {
				r.Within(2 * time.Second)
				r.Within(time.Second)
				r.Within(time.Hour)
			}
			return nil
		})
		time.Sleep(time.Minute + time.Second + time.Millisecond)
		if got, want := rounds(), []time.Duration{0, time.Second, time.Minute + time.Second}; !slices.Equal(got, want) {
			t.Errorf("rounds at %v, want %v", got, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRun_ReportsRoundsWithoutAChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, table := newTable(t)
		var full []bool
		rounds, stop := start(t, db, loop.Options{Interval: 1500 * time.Millisecond}, func(r *loop.Round) error {
			for range loop.All(r, table.ToTable()) {
			}
			full = append(full, r.Full)
			return nil
		})
		time.Sleep(time.Second)
		synctest.Wait()
		insert(t, db, table, &row{Key: "a"})
		time.Sleep(2 * time.Second)
		if got, want := rounds(), []time.Duration{0, time.Second, 2500 * time.Millisecond}; !slices.Equal(got, want) || !slices.Equal(full, []bool{true, false, true}) {
			t.Errorf("rounds at %v, full %v, want %v", got, full, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRun_ReleasesTheSnapshotBeforeTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := newTable(t)
		var last *loop.Round
		rounds, stop := start(t, db, loop.Options{}, func(r *loop.Round) error { last = r; return nil })
		if got := rounds(); len(got) != 1 || last.Txn != nil {
			t.Errorf("%d rounds, the last one keeps the snapshot: %t", len(got), last.Txn != nil)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRun_ReturnsTheErrorOfARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := newTable(t)
		failure := errors.New("disk full")
		if err := loop.Run(t.Context(), db, loop.Options{}, func(*loop.Round) error { return failure }); !errors.Is(err, failure) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAwait_ReturnsWhenTheConditionHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, table := newTable(t)
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan bool, 2)
		for _, key := range []string{"a", "b"} {
			go func() {
				results <- loop.Await(ctx, db, loop.Options{}, func(r *loop.Round) bool {
					_, found := loop.Get(r, table.ToTable(), byKey.Query(key))
					return found
				})
			}()
		}
		synctest.Wait()
		insert(t, db, table, &row{Key: "a"})
		if !<-results {
			t.Error("the loop has not seen the row")
		}
		cancel()
		if <-results {
			t.Error("a loop that was stopped has seen a row")
		}
	})
}

func TestComplete_InitializationBeginsARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, table := newTable(t)
		txn := db.WriteTxn(table)
		done := table.RegisterInitializer(txn, "test")
		txn.Commit()
		var complete []bool
		rounds, stop := start(t, db, loop.Options{}, func(r *loop.Round) error {
			complete = append(complete, r.Complete(table))
			return nil
		})
		time.Sleep(time.Second)
		synctest.Wait()
		txn = db.WriteTxn(table)
		done(txn)
		txn.Commit()
		if got, want := rounds(), []time.Duration{0, time.Second}; !slices.Equal(got, want) || !slices.Equal(complete, []bool{false, true}) {
			t.Errorf("rounds at %v with %v, want %v", got, complete, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestWatch_ChangeBeginsARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, table := newTable(t)
		rounds, stop := start(t, db, loop.Options{}, func(r *loop.Round) error { r.Watch(table); return nil })
		for _, value := range []string{"added", "changed"} {
			time.Sleep(time.Second)
			synctest.Wait()
			insert(t, db, table, &row{Key: "a", Value: value})
		}
		if got, want := rounds(), []time.Duration{0, time.Second, 2 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("rounds at %v, want %v", got, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestGetAndList_WatchTheirRowsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, table := newTable(t)
		insert(t, db, table, &row{Key: "a"}, &row{Key: "b"}, &row{Key: "c"})
		rounds, stop := start(t, db, loop.Options{}, func(r *loop.Round) error {
			if _, found := loop.Get(r, table.ToTable(), byKey.Query("a")); !found {
				t.Error("row a is missing")
			}
			for range loop.List(r, table.ToTable(), byKey.Query("b")) {
			}
			return nil
		})
		for _, key := range []string{"c", "b", "c", "a"} {
			time.Sleep(time.Second)
			synctest.Wait()
			insert(t, db, table, &row{Key: key, Value: "changed"})
		}
		if got, want := rounds(), []time.Duration{0, 2 * time.Second, 4 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("rounds at %v, want %v", got, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
