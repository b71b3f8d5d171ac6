// Package loop runs the loops of controllers and observers. In each round, a loop reads a snapshot of its tables, computes rows, commits them and reports its
// health; then it waits until an input changes. [Run] takes the snapshots, waits, and reports to the watchdog.
package loop

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Options say when rounds begin. Without any, each change begins a round at once.
type Options struct {
	// Tables are the tables whose every change begins a round: each round must add their channels to [Round.Changed]. The watchdog reports the loop as stalled if
	// it does not read a change of these tables. Tables of which the controller watches single rows only do not belong here.
	Tables []statedb.TableMeta
	// Pause is the minimum time between the beginnings of two rounds without a burst. A single change after a pause is not delayed. 0 means none.
	Pause time.Duration
	// Burst is the number of rounds that may begin without a pause between them. Each pause without a round permits one of them. 0 means 1.
	Burst int
	// Settle delays a round after the first change, so that changes within this time cause one round. 0 means none.
	Settle time.Duration
	// Interval is the maximum time between the end of a round and the beginning of the next one. 0 means that only changes begin a round.
	Interval time.Duration
}

// Run calls round until round returns an error, which Run returns, or until ctx ends, when Run returns nil. It must run in a job of package watchdog.
func Run(ctx context.Context, db *statedb.DB, o Options, round func(*Round) error) error {
	limit := rate.Inf
	if o.Pause > 0 {
		limit = rate.Every(o.Pause)
	}
	limiter := rate.NewLimiter(limit, max(o.Burst, 1))
	limiter.Allow() // the first round begins at once, even if ctx has ended
	for full := true; ; {
		r := &Round{Txn: watchdog.Snapshot(ctx, db, o.Tables...), Changed: statedb.NewWatchSet(), Full: full, within: o.Interval}
		if err := round(r); err != nil {
			return err
		}
		r.Txn = nil // a snapshot keeps deleted rows of all tables in memory
		full = !r.wait(ctx, o.Settle)
		if ctx.Err() != nil || limiter.Wait(ctx) != nil {
			return nil
		}
	}
}

// errHolds ends the loop of [Await].
var errHolds = errors.New("the condition holds")

// Await runs rounds until holds returns true. It returns false if ctx ends before.
func Await(ctx context.Context, db *statedb.DB, o Options, holds func(*Round) bool) bool {
	return Run(ctx, db, o, func(r *Round) error {
		if holds(r) {
			return errHolds
		}
		return nil
	}) != nil
}

// Round is one reconciliation round. It must be used by one goroutine only.
type Round struct {
	Txn     statedb.ReadTxn   // the snapshot; a round without further use of it sets it to nil before slow work, such as requests
	Changed *statedb.WatchSet // a channel that closes begins the next round
	Full    bool              // no change has begun this round: it is the first one, or the time since the previous one has expired

	within time.Duration
}

// Within begins the next round after d at the latest, 1 ns if d is not positive. The shortest of all times counts.
func (r *Round) Within(d time.Duration) {
	if d = max(d, 1); r.within == 0 || d < r.within {
		r.within = d
	}
}

// Watch begins the next round after a change of the tables.
func (r *Round) Watch(tables ...statedb.TableMeta) {
	for _, t := range tables {
		_, changed := statedb.AnyTable{Meta: t}.AllWatch(r.Txn)
		r.Changed.Add(changed)
	}
}

// Complete reports whether all tables are initialized. The initialization of the others begins the next round.
func (r *Round) Complete(tables ...statedb.TableMeta) bool {
	complete := true
	for _, t := range tables {
		if done, initialized := t.Initialized(r.Txn); !done {
			complete = false
			r.Changed.Add(initialized)
		}
	}
	return complete
}

// wait waits for a change, and reports whether there is one.
func (r *Round) wait(ctx context.Context, settle time.Duration) bool {
	if r.within > 0 {
		limited, cancel := context.WithTimeout(ctx, r.within)
		defer cancel()
		watchdog.IdleFor(ctx, r.within) // Run takes the next snapshot
		ctx = limited
	} else {
		watchdog.Idle(ctx) // Run takes the next snapshot
	}
	if _, err := r.Changed.Wait(ctx, 0); err != nil || settle <= 0 { // with a settle time, Wait returns at once if all channels are closed
		return err == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settle):
		return true
	}
}

// All returns the rows of a table. A change of the table begins the next round.
func All[R any](r *Round, table statedb.Table[R]) iter.Seq2[R, statedb.Revision] {
	rows, changed := table.AllWatch(r.Txn)
	r.Changed.Add(changed)
	return rows
}

// List returns the rows that a query selects. A change of these rows begins the next round.
func List[R any](r *Round, table statedb.Table[R], query statedb.Query[R]) iter.Seq2[R, statedb.Revision] {
	rows, changed := table.ListWatch(r.Txn, query)
	r.Changed.Add(changed)
	return rows
}

// Get returns the first row that a query selects. A change of the selected rows begins the next round.
func Get[R any](r *Round, table statedb.Table[R], query statedb.Query[R]) (row R, found bool) {
	row, _, changed, found := table.GetWatch(r.Txn, query)
	r.Changed.Add(changed)
	return row, found
}
