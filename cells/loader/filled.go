package loader

import (
	"iter"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// filled tells whether this generation's programs find in their maps what those before them found. Maps that were taken
// over are; one that had to be made anew (the first start, a pin that somebody removed or spoilt, a release left out) is
// when its owner has written all that is to be written now. Until then no hook is touched. It watches what is missing.
func (c *controller) filled(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	all, more := c.Maps.AllWatch(txn)
	opened := make(map[string]time.Time) // by owner of maps that have to be filled: when the last of them was opened
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
	since, services := opened[bpfmaps.OwnerServiceMaps] // one is done when the backends that it names are there
	filled = filled && (!services || written(txn, c.Frontends, since, copied, changed))
	since, nodes := opened[bpfmaps.OwnerNodeMaps]
	filled = filled && (!nodes || written(txn, c.NodeSlots, since, copied, changed))
	if !filled {
		_, sources := c.Sources.AllWatch(txn)
		changed.Add(more, sources)
	}
	return filled
}

// copied reports whether what tables have of a copy of the objects is enough: it is all that there is on a node that boots while the API server is
// unavailable. No map of a previous run is there, so no hook runs a program that has more in its maps.
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

// endpointsWritten asks whether every endpoint is known and none of its entries waits. The feed wakes the loop for each.
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

// written reports whether all rows of a table are known, or copied, and none is pending.
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

// anyWaits leaves out rows that failed since their map was opened: they would be missing later as well. Those that failed
// before it was there are tried again.
func anyWaits[R interface{ GetStatus() reconciler.Status }](rows iter.Seq2[R, statedb.Revision], since time.Time) bool {
	for row := range rows {
		s := row.GetStatus()
		if s.Kind == reconciler.StatusKindPending || s.Kind == reconciler.StatusKindError && s.UpdatedAt.Before(since) {
			return true
		}
	}
	return false
}
