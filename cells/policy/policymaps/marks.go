package policymaps

import (
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// marks has the rows that the verify job has marked pending. No other writer makes a row of policy-entries or named-cidrs pending.
type marks struct {
	policies, ranges     map[statedb.Revision]bool // revisions of the rows that were marked when this round began
	policiesTo, rangesTo statedb.Revision          // revisions of the tables up to which rows were checked for marks
	// policiesChanged and rangesChanged close with the next change of the tables.
	policiesChanged, rangesChanged <-chan struct{}
}

// takeMarks reads the rows that the verify job has marked pending, so that their entries are written again. It reads only rows that were written since the
// last round began. It adds channels to changed that close after further changes.
func (c *controller) takeMarks(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	c.marks.policies = map[statedb.Revision]bool{}
	for row, revision := range pendingAfter(txn, c.Compiled, c.marks.policiesTo) {
		if h := c.store.byID[row.ID]; h != nil {
			h.broken, c.marks.policies[revision] = true, true
		}
	}
	c.marks.ranges = map[statedb.Revision]bool{}
	for row, revision := range pendingAfter(txn, c.Named, c.marks.rangesTo) {
		c.marks.ranges[revision], c.cidrs.moved = true, true
		if c.cidrs.written[row.Prefix] == row.Identity {
			c.cidrs.written[row.Prefix] = 0
		}
	}
	c.marks.policiesTo, c.marks.rangesTo = c.Compiled.Revision(txn), c.Named.Revision(txn)
	_, c.marks.policiesChanged = c.Compiled.AllWatch(txn)
	_, c.marks.rangesChanged = c.Named.AllWatch(txn)
	changed.Add(c.marks.policiesChanged, c.marks.rangesChanged)
}

// markable is a row that the verify job can mark pending.
type markable interface{ GetStatus() reconciler.Status }

// pendingAfter yields the pending rows of a table that were written after a revision.
func pendingAfter[R markable](txn statedb.ReadTxn, table statedb.RWTable[R], after statedb.Revision) iter.Seq2[R, statedb.Revision] {
	return func(yield func(R, statedb.Revision) bool) {
		for row, revision := range table.LowerBound(txn, statedb.ByRevision[R](after+1)) {
			if row.GetStatus().Kind == reconciler.StatusKindPending && !yield(row, revision) {
				return
			}
		}
	}
}

// passOverOwnRows handles a change of policy-entries or named-cidrs without a round, if no row was marked since the last round began: the last round has made
// the change itself. It reports whether closed is the channel of such a change.
func (c *controller) passOverOwnRows(closed <-chan struct{}, changed *statedb.WatchSet) bool {
	switch closed {
	case c.marks.policiesChanged:
		return passOverUnmarked(c.DB.ReadTxn(), c.Compiled, c.marks.policiesTo, &c.marks.policiesChanged, changed)
	case c.marks.rangesChanged:
		return passOverUnmarked(c.DB.ReadTxn(), c.Named, c.marks.rangesTo, &c.marks.rangesChanged, changed)
	}
	return false
}

// passOverUnmarked watches a table again, unless a row was marked after a revision. It reports whether no row was marked.
func passOverUnmarked[R markable](txn statedb.ReadTxn, table statedb.RWTable[R], after statedb.Revision, next *<-chan struct{}, changed *statedb.WatchSet) bool {
	for range pendingAfter(txn, table, after) {
		return false
	}
	_, *next = table.AllWatch(txn)
	changed.Add(*next)
	return true
}
