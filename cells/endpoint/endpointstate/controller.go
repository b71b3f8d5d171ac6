package endpointstate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

type params struct {
	cell.In

	DB          *statedb.DB
	States      statedb.RWTable[*endpointstates.EndpointState]
	Endpoints   statedb.Table[*endpoints.Endpoint]
	Facts       statedb.Table[*bpfendpoints.Facts]
	Links       statedb.Table[*bpfendpoints.Link]
	Addresses   statedb.Table[*bpfendpoints.Address]
	Attachments statedb.Table[*attachments.Attachment]
	Identities  statedb.Table[*identities.EndpointIdentity]
	Policies    statedb.Table[*endpointpolicies.EndpointPolicy]
	Ipcache     statedb.Table[*ipcache.Entry]
}

type controller struct {
	params
	initialize initialize
	complete   bool // the table is initialized
	// ofEntries are the endpoints whose entries in ipcache have changed since the last pass. entriesChanged closes at the next change of ipcache.
	ofEntries      endpointfeed.Marks
	entriesChanged *statedb.WatchSet
}

// run has no debounce interval: requests wait for the state that it writes. Commits during a pass are processed together in the next one.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	changes, err := c.subscribe()
	if err != nil {
		return fmt.Errorf("follow the rows of endpoints: %w", err)
	}
	defer changes.close()
	report := reporter(health)
	var again endpointfeed.Marks
	for full, alive := true, true; alive; {
		txn := watchdog.Snapshot(ctx, c.DB, c.Endpoints, c.Facts, c.Links, c.Addresses, c.Attachments, c.Identities, c.Policies)
		changed := statedb.NewWatchSet()
		marked, all := c.next(changes, txn, changed)
		if full || all {
			marked = c.everything(txn)
		}
		maps.Copy(marked, again)
		ready := c.inputsComplete(txn, changed)

		updates := c.compute(txn, marked, time.Now().UTC())

		if err := c.commit(updates, ready); err != nil {
			health.Degraded("states of endpoints are out of date", err)
			return err
		}

		if full || !updates.empty() {
			report(failures(c.States.All(c.DB.ReadTxn())))
		}

		if again = updates.again; len(again) > 0 {
			full = false
			continue
		}
		watchdog.IdleFor(ctx, endpointfeed.FullPassInterval)
		full, alive = c.wait(ctx, changes, changed)
	}
	return nil
}

// wait returns when an input changes or after [endpointfeed.FullPassInterval]. full reports that no input has changed in that time; alive is false when ctx has
// ended. wait ignores changes of ipcache that do not affect an endpoint of this node: in a large cluster addresses of other nodes change all the time.
func (c *controller) wait(ctx context.Context, f feed, changed *statedb.WatchSet) (full, alive bool) {
	limited, cancel := context.WithTimeout(ctx, endpointfeed.FullPassInterval)
	defer cancel()
	for {
		closed, err := changed.Wait(limited, 0)
		if err != nil || !c.entriesChanged.Has(closed[0]) {
			return err != nil, ctx.Err() == nil
		}
		if c.followEntries(f, c.DB.ReadTxn(), changed); len(c.ofEntries) > 0 {
			return false, ctx.Err() == nil
		}
	}
}

// inputsComplete reports whether the tables of endpoints and of their rows are initialized, and watches the other tables. It does not wait for the table
// ipcache, which is initialized only when the pods of other nodes are known.
func (c *controller) inputsComplete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	if c.complete {
		return true
	}
	ready := true
	for _, table := range []statedb.TableMeta{c.Endpoints, c.Facts, c.Links, c.Addresses, c.Attachments, c.Identities, c.Policies} {
		if ok, initialized := table.Initialized(txn); !ok {
			ready = false
			changed.Add(initialized)
		}
	}
	return ready
}

// updates has the changes to the table.
type updates struct {
	insert, remove []*endpointstates.EndpointState
	again          endpointfeed.Marks // rows of deleted endpoints that another pass must advance
}

func (u updates) empty() bool { return len(u.insert) == 0 && len(u.remove) == 0 }

// compute computes the states of the marked endpoints from one snapshot.
func (c *controller) compute(txn statedb.ReadTxn, m endpointfeed.Marks, now time.Time) updates {
	u := updates{again: endpointfeed.Marks{}}
	var rest map[uint16]bool // most passes do not need it
	for _, id := range slices.Sorted(maps.Keys(m)) {
		old, _, known := c.States.Get(txn, endpointstates.ByID(id))
		ep, _, wanted := c.Endpoints.Get(txn, endpoints.ByID(id))
		switch {
		case wanted:
			if !known || old.Attachment != ep.AttachmentID() {
				old = &endpointstates.EndpointState{ID: ep.ID, Attachment: ep.AttachmentID()}
			}
			if row := advance(old, ep, c.observe(txn, ep), now); row != old {
				u.insert = append(u.insert, row)
			}
		case known:
			gone := old.State == endpointstates.Disconnecting && !c.holds(txn, id)
			if gone && rest == nil {
				rest = c.lingering(txn)
			}
			u.retire(old, gone && !rest[id], now)
		}
	}
	return u
}

// commit writes the changes, if there are any.
func (c *controller) commit(u updates, ready bool) error {
	ready = ready && !c.complete
	if u.empty() && !ready {
		return nil
	}
	txn := c.DB.WriteTxn(c.States)
	defer txn.Abort()
	var errs []error
	for _, row := range u.insert {
		_, _, err := c.States.Insert(txn, row)
		errs = append(errs, err)
	}
	for _, row := range u.remove {
		_, _, err := c.States.Delete(txn, row)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write the states of endpoints: %w", err)
	}
	if ready {
		c.initialize(txn)
		c.complete = true
	}
	txn.Commit()
	return nil
}
