// Package leadership holds the leader of the cluster-wide work: this replica or another one.
package leadership

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Leadership is a Lease as this replica knows it.
type Leadership struct {
	Lease    string `json:"lease"`    // "namespace/name"
	Identity string `json:"identity"` // of this replica
	Leader   string `json:"leader"`   // identity of the owner of the Lease; empty if it has none or the owner is unknown
	// Until is the time at which this replica must stop leading unless it renews before; zero if it does not lead. It is well before the time from
	// which another replica may take over.
	Until time.Time `json:"until,omitzero"`
	Since time.Time `json:"since,omitzero"` // time at which this replica first saw Leader
	Error string    `json:"error,omitempty"`
}

// Leads reports whether this replica leads at a time. Both clocks of the machine must confirm it: one of them stops while the machine is suspended, the
// other one may be set.
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

// NewTable makes the table "leadership". It has one row.
func NewTable(db *statedb.DB) (statedb.RWTable[Leadership], error) {
	return statedb.NewTable(db, "leadership", leaseIndex)
}

// ErrNotLeading reports that this replica does not lead or no longer leads.
var ErrNotLeading = errors.New("this replica is no longer the leader")

// Check returns [ErrNotLeading] unless this replica leads now. Call it directly before each write.
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

// Await waits until this replica leads. The returned context ends with the cause [ErrNotLeading] when the replica no longer leads, or when done is
// called. An error is the error of ctx.
func Await(ctx context.Context, db *statedb.DB, table statedb.Table[Leadership]) (leading context.Context, done func(), err error) {
	watchdog.Idle(ctx)
	defer watchdog.Busy(ctx)
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

// Lead runs work whenever this replica leads, with a context that ends when it no longer does. After each loss of leadership it calls lost. It returns
// nil when ctx ends, otherwise the first error of work or lost.
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

// guard returns when this replica no longer leads, even if the row is not updated, or when ctx ends.
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
