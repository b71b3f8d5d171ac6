package loader

import (
	"iter"

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
	endpoints, ipcache := false, false
	for m := range all {
		if !m.Filled && m.Error == "" {
			endpoints = endpoints || m.Owner == bpfmaps.OwnerEndpointMaps
			ipcache = ipcache || m.Owner == bpfmaps.OwnerIpcache
		}
	}
	filled := (!endpoints || c.endpointsWritten(txn, changed)) && (!ipcache || c.ipcacheWritten(txn, changed))
	if !filled {
		changed.Add(more)
	}
	return filled
}

// endpointsWritten asks whether every endpoint is known and none of its entries waits. The feed wakes the loop for each.
func (c *controller) endpointsWritten(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	if known, in := c.Endpoints.Initialized(txn); !known {
		changed.Add(in)
		return false
	}
	for ep := range c.Endpoints.All(txn) {
		if _, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(ep.ID)); !found && ep.Quarantine == "" {
			return false
		}
	}
	return !anyPending(c.Facts.All(txn)) && !anyPending(c.Links.All(txn)) && !anyPending(c.Addresses.All(txn))
}

func (c *controller) ipcacheWritten(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	all, more := c.Ipcache.AllWatch(txn)
	if anyPending(all) {
		changed.Add(more)
		return false
	}
	return true
}

// anyPending leaves out rows that cannot be written: they would be missing later as well.
func anyPending[R interface{ GetStatus() reconciler.Status }](rows iter.Seq2[R, statedb.Revision]) bool {
	for row := range rows {
		if row.GetStatus().Kind == reconciler.StatusKindPending {
			return true
		}
	}
	return false
}
