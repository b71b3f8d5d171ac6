// Package leaderwork runs the cluster-wide work of this replica while the table leadership names it as the leader.
package leaderwork

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// ErrNotLeading reports that this replica does not lead or no longer leads.
var ErrNotLeading = errors.New("this replica is no longer the leader")

// Check returns [ErrNotLeading] unless this replica leads now. Call it directly before each write.
func Check(db *statedb.DB, table statedb.Table[leadership.Leadership]) error {
	row, _ := read(db.ReadTxn(), table)
	if !row.Leads(time.Now()) {
		return ErrNotLeading
	}
	return nil
}

// read returns the only row of the table, the zero row without one, and a channel that closes with the next change.
func read(txn statedb.ReadTxn, table statedb.Table[leadership.Leadership]) (leadership.Leadership, <-chan struct{}) {
	rows, changed := table.AllWatch(txn)
	for row := range rows {
		return row, changed
	}
	return leadership.Leadership{}, changed
}

// Await waits until this replica leads. The returned context ends with the cause [ErrNotLeading] when the replica no longer leads, or when done is
// called. An error is the error of ctx.
func Await(ctx context.Context, db *statedb.DB, table statedb.Table[leadership.Leadership]) (leading context.Context, done func(), err error) {
	leads := func(r *loop.Round) bool {
		row, changed := read(r.Txn, table)
		r.Changed.Add(changed)
		return row.Leads(time.Now())
	}
	if !loop.Await(ctx, db, loop.Options{}, leads) {
		return nil, nil, fmt.Errorf("wait for leadership: %w", ctx.Err())
	}
	leading, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		guard(leading, db, table)
		cancel(ErrNotLeading)
	}()
	return leading, func() { cancel(context.Canceled); <-ended }, nil
}

// Run runs work whenever this replica leads, with a context that ends when it no longer does. After each loss of leadership it calls lost. It returns
// nil when ctx ends, otherwise the first error of work or lost.
func Run(ctx context.Context, db *statedb.DB, table statedb.Table[leadership.Leadership], work func(context.Context) error, lost func() error) error {
	for {
		leading, done, err := Await(ctx, db, table)
		if err != nil {
			return nil // stopping
		}
		err = work(leading)
		over := leading.Err() != nil
		done()
		switch {
		case ctx.Err() != nil:
			return nil
		case over:
			err = lost()
		}
		if err != nil {
			return err
		}
	}
}

// guard returns when this replica no longer leads, even if the row is not updated, or when ctx ends.
func guard(ctx context.Context, db *statedb.DB, table statedb.Table[leadership.Leadership]) {
	for {
		row, changed := read(db.ReadTxn(), table)
		now := time.Now()
		if !row.Leads(now) {
			return
		}
		timer := time.NewTimer(row.Until.Sub(now))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
