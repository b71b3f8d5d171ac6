// Package leadership holds who does the work of the whole cluster: this replica or another one.
package leadership

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// Leadership is a Lease as this replica knows it.
type Leadership struct {
	Lease    string `json:"lease"`    // "namespace/name"
	Identity string `json:"identity"` // of this replica
	Leader   string `json:"leader"`   // identity of whoever holds the Lease; empty when nobody does or nothing is known
	// Until is when this replica must have stopped unless it renews before; zero when it does not lead. It lies well before
	// the moment from which another replica may take over.
	Until time.Time `json:"until,omitzero"`
	Since time.Time `json:"since,omitzero"` // when Leader began, as seen from here
	Error string    `json:"error,omitempty"`
}

// Leads tells whether this replica leads at a moment. Both clocks of the machine must say so: one of them stands still while
// a machine is suspended, the other one may be set.
func (l Leadership) Leads(now time.Time) bool {
	return now.Before(l.Until) && now.Round(0).Before(l.Until.Round(0))
}

// TableHeader implements statedb.TableWritable.
func (Leadership) TableHeader() []string {
	return []string{"Lease", "Identity", "Leader", "Leading", "Since", "Error"}
}

// TableRow implements statedb.TableWritable.
func (l Leadership) TableRow() []string {
	since, leader := "-", "-"
	if !l.Since.IsZero() {
		since = l.Since.UTC().Format(time.RFC3339)
	}
	if l.Leader != "" {
		leader = l.Leader
	}
	return []string{l.Lease, l.Identity, leader, strconv.FormatBool(!l.Until.IsZero()), since, l.Error}
}

var leaseIndex = statedb.Index[Leadership, string]{
	Name:       "lease",
	FromObject: func(l Leadership) index.KeySet { return index.NewKeySet(index.String(l.Lease)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByLease finds a row by "namespace/name".
var ByLease = leaseIndex.Query

// NewTable makes the table "leadership". It has one row.
func NewTable(db *statedb.DB) (statedb.RWTable[Leadership], error) {
	return statedb.NewTable(db, "leadership", leaseIndex)
}

// ErrNotLeading is why work ends or does not begin.
var ErrNotLeading = errors.New("this replica does not lead any more")

// Check says whether this replica leads at this moment. Ask right before each write.
func Check(db *statedb.DB, table statedb.Table[Leadership]) error {
	row, _ := read(db, table)
	if !row.Leads(time.Now()) {
		return ErrNotLeading
	}
	return nil
}

func read(db *statedb.DB, table statedb.Table[Leadership]) (Leadership, <-chan struct{}) {
	rows, changed := table.AllWatch(db.ReadTxn())
	for row := range rows {
		return row, changed
	}
	return Leadership{}, changed
}

// Await returns once this replica leads. The context that it makes ends when it no longer does, with [ErrNotLeading] as
// the cause, or when done is called. The error is that of ctx.
func Await(ctx context.Context, db *statedb.DB, table statedb.Table[Leadership]) (leading context.Context, done func(), err error) {
	heartbeat.Idle(ctx)
	defer heartbeat.Busy(ctx)
	for {
		row, changed := read(db, table)
		if row.Leads(time.Now()) {
			leading, cancel := context.WithCancelCause(ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				guard(leading, db, table)
				cancel(ErrNotLeading)
			}()
			return leading, func() { cancel(context.Canceled); <-ended }, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("wait for leadership: %w", ctx.Err())
		}
	}
}

// Lead does work whenever this replica leads, with a context that ends when it no longer does, and calls lost each time it has
// lost the lead. It returns nil when ctx ends, and otherwise the first error of work or lost.
func Lead(ctx context.Context, db *statedb.DB, table statedb.Table[Leadership], work func(context.Context) error, lost func() error) error {
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

// guard returns when this replica does not lead any more, also when nobody updates the row.
func guard(ctx context.Context, db *statedb.DB, table statedb.Table[Leadership]) {
	for {
		row, changed := read(db, table)
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
