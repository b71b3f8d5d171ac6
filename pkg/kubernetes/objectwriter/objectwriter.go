// Package objectwriter runs the loop of a cell that writes to a Kubernetes object.
package objectwriter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
)

const (
	pause       = 100 * time.Millisecond // minimum time between two passes; a pass after a longer idle time does not wait
	firstWait   = 100 * time.Millisecond // after the first failure in a row
	longWait    = 5 * time.Second        // upper limit
	passTimeout = 15 * time.Second       // timeout of all requests of a pass
)

// Pass performs all necessary writes. It adds to watch the channels whose closing makes another pass necessary.
type Pass func(ctx context.Context, watch *statedb.WatchSet) []nodeupdates.Update

// Loop calls pass whenever a channel of its watch set closes. After a failure it calls pass again after a delay and ignores the channels meanwhile, so that
// changes of tables cause no additional requests to an unreachable server. The rows of table are the updates of the last pass.
func Loop(ctx context.Context, health cell.Health, db *statedb.DB, table statedb.RWTable[nodeupdates.Update], pass Pass) error {
	failures := 0
	return loop.Run(ctx, db, loop.Options{Pause: pause}, func(r *loop.Round) error {
		r.Txn = nil // pass takes its own snapshot and need not keep it during requests
		limited, cancel := context.WithTimeout(ctx, passTimeout)
		updates := pass(limited, r.Changed)
		cancel()
		if ctx.Err() != nil {
			return nil // the end of the agent causes the failures
		}
		if err := commit(db, table, updates); err != nil {
			health.Degraded("write "+table.Name(), err)
			return err
		}
		if report(health, updates) {
			failures = 0
			return nil
		}
		failures++
		r.Changed.Clear()
		wait := min(longWait, firstWait<<min(failures-1, 10))
		r.Within(wait/2 + rand.N(wait/2+1)) // random, because all nodes retry when the server returns
		return nil
	})
}

// report updates health and reports whether no update failed.
func report(health cell.Health, updates []nodeupdates.Update) bool {
	var errs []error
	var waiting []string
	for _, u := range updates {
		switch u.State {
		case nodeupdates.Failed:
			errs = append(errs, fmt.Errorf("%s: %s", u.Name, u.Message))
		case nodeupdates.Waiting:
			waiting = append(waiting, u.Name+" waits for "+u.Message)
		}
	}
	switch {
	case len(errs) > 0:
		health.Degraded("some objects could not be written", errors.Join(errs...))
	case len(waiting) > 0:
		health.OK(strings.Join(waiting, "; "))
	default:
		health.OK("all objects are written")
	}
	return len(errs) == 0
}

// commit replaces the rows with the updates of the last pass.
func commit(db *statedb.DB, table statedb.RWTable[nodeupdates.Update], updates []nodeupdates.Update) error {
	txn := db.WriteTxn(table)
	defer txn.Abort()
	want := make(map[string]nodeupdates.Update, len(updates))
	for _, u := range updates {
		u.Since = time.Now()
		if old, _, found := table.Get(txn, nodeupdates.ByName(u.Name)); found && old.State == u.State {
			u.Since = old.Since
		}
		want[u.Name] = u
	}
	name := func(u nodeupdates.Update) string { return u.Name }
	if err := rows.Replace(txn, table, table.All(txn), want, name, nodeupdates.Update.Same); err != nil {
		return err
	}
	txn.Commit()
	return nil
}
