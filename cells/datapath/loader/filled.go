package loader

import (
	"iter"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// filled reports whether the maps have the entries that the programs of this generation need. A map of a previous run has them. A map that had to be created
// again (the first start, a pin that another program removed or damaged, a skipped release) has them when its owner has written all its rows. Until then no
// hook is changed. filled watches the tables of missing entries.
func (c *controller) filled(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	all, more := c.Maps.AllWatch(txn)
	opened := make(map[string]time.Time) // by owner of unfilled maps: the time at which its last map was opened
	for m := range all {
		if last, found := opened[m.Owner]; !m.Filled && m.Error == "" && (!found || m.Opened.After(last)) {
			opened[m.Owner] = m.Opened
		}
	}
	since, endpoints := opened[bpfmaps.OwnerEndpointMaps]
	filled := !endpoints || c.endpointsWritten(txn, since, changed)
	copied := c.copied(txn)
	since, ipcache := opened[bpfmaps.OwnerIpcache]
	filled = filled && (!ipcache || written(txn, c.Ipcache, since, copied, changed))
	since, services := opened[bpfmaps.OwnerServiceMaps] // the row of a frontend is Done when its backends are in the map
	filled = filled && (!services || written(txn, c.Frontends, since, copied, changed))
	since, nodes := opened[bpfmaps.OwnerNodeMaps]
	filled = filled && (!nodes || written(txn, c.NodeSlots, since, copied, changed))
	if !filled {
		_, sources := c.Sources.AllWatch(txn)
		changed.Add(more, sources)
	}
	return filled
}

// copied reports whether rows from the copy of the objects on disk suffice. A node that boots while the API server is unavailable has no other source. No map
// of a previous run may exist, so no hook runs a program whose maps have more entries.
func (c *controller) copied(txn statedb.ReadTxn) bool {
	for m := range c.Maps.All(txn) {
		if m.Reused {
			return false
		}
	}
	known := false
	for s := range c.Sources.All(txn) {
		if s.Delays() {
			return false
		}
		known = true
	}
	return known
}

// endpointsWritten reports whether every endpoint is known and no entry of an endpoint is pending. The change feed wakes the loop when an entry changes.
func (c *controller) endpointsWritten(txn statedb.ReadTxn, since time.Time, changed *statedb.WatchSet) bool {
	if known, in := c.Endpoints.Initialized(txn); !known {
		changed.Add(in)
		return false
	}
	for ep := range c.Endpoints.All(txn) {
		if _, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(ep.ID)); !found && ep.Quarantine == "" {
			return false
		}
	}
	return !anyWaits(c.Facts.All(txn), since) && !anyWaits(c.Links.All(txn), since) && !anyWaits(c.Addresses.All(txn), since)
}

// written reports whether all rows of a table are known, or come from the copy, and none is pending.
func written[R interface{ GetStatus() reconciler.Status }](txn statedb.ReadTxn, table statedb.Table[R], since time.Time, copied bool,
	changed *statedb.WatchSet,
) bool {
	if known, in := table.Initialized(txn); !known && !copied {
		changed.Add(in)
		return false
	}
	all, more := table.AllWatch(txn)
	if anyWaits(all, since) {
		changed.Add(more)
		return false
	}
	return true
}

// anyWaits reports whether a row is pending. It ignores rows that failed after their map was opened, because waiting would not help. Rows that failed earlier
// will be retried.
func anyWaits[R interface{ GetStatus() reconciler.Status }](rows iter.Seq2[R, statedb.Revision], since time.Time) bool {
	for row := range rows {
		s := row.GetStatus()
		if s.Kind == reconciler.StatusKindPending || s.Kind == reconciler.StatusKindError && s.UpdatedAt.Before(since) {
			return true
		}
	}
	return false
}
