package policymaps

import (
	"errors"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
)

// show writes the state of the cell to the tables policies, policy-entries, policy-classes and named-cidrs.
func (c *controller) show(w *wanted) {
	for _, ref := range c.in.resolver.SubjectsChanged() {
		c.in.unshown[ref] = true
	}
	classes := c.in.resolver.ChangedClasses()
	if w.idle && len(classes)+len(c.in.unshown) == 0 {
		return
	}
	txn := c.DB.WriteTxn(c.Compiled, c.Named, c.Policies, c.ClassTable)
	defer txn.Commit()
	c.showClasses(txn, classes)
	c.showPolicies(txn)
	if !w.idle {
		c.showCompiled(txn)
	}
	if c.cidrs.moved {
		c.showNamed(txn)
		c.cidrs.settle()
	}
}

func (c *controller) showCompiled(txn statedb.WriteTxn) {
	for row := range c.Compiled.All(txn) {
		if h := c.store.byID[row.ID]; h == nil || h.is == nil {
			_, _, _ = c.Compiled.Delete(txn, row)
		}
	}
	for id, h := range c.store.byID {
		if h.is == nil {
			continue
		}
		status := statusOf(h)
		old, revision, found := c.Compiled.Get(txn, policyentries.ByID(id))
		if found && old.Status.Kind == reconciler.StatusKindPending && !c.marks.policies[revision] {
			continue // marked since this round began, so the next round handles it
		}
		if found && old.Compiled == h.is && old.Users == h.users && old.Status.Kind == status.Kind && old.Status.GetError() == status.GetError() {
			continue
		}
		entries, ranges := h.is.Len()
		_, _, _ = c.Compiled.Insert(txn, &policyentries.Policy{ID: id, Shape: h.is.Shape(), Entries: entries, Ranges: ranges, Policies: h.policies,
			Users: h.users, Compiled: h.is, Status: status})
	}
}

func statusOf(h *mapPolicy) reconciler.Status {
	switch {
	case h.err != nil:
		return reconciler.StatusError(h.err)
	case h.broken:
		return reconciler.StatusError(errors.New("entries may be missing"))
	}
	return reconciler.StatusDone()
}

func (c *controller) showNamed(txn statedb.WriteTxn) {
	for row := range c.Named.All(txn) {
		if c.cidrs.numbers[row.Prefix] != row.Identity {
			_, _, _ = c.Named.Delete(txn, row)
		}
	}
	for _, prefix := range sortedPrefixes[uint32](c.cidrs.numbers) {
		row := &namedcidrs.CIDR{Prefix: prefix, Identity: c.cidrs.numbers[prefix], Retired: !c.cidrs.named[prefix]}
		switch {
		case c.cidrs.written[prefix] == row.Identity:
			row.Status = reconciler.StatusDone()
		case c.cidrs.err != nil:
			row.Status = reconciler.StatusError(c.cidrs.err)
		default:
			row.Status = reconciler.StatusError(errors.New("waiting until all policies on this node know the range"))
		}
		old, revision, found := c.Named.Get(txn, namedcidrs.ByPrefix(prefix))
		if found && old.Status.Kind == reconciler.StatusKindPending && !c.marks.ranges[revision] {
			continue
		}
		if found && old.Equal(row) && old.Status.Kind == row.Status.Kind && old.Status.GetError() == row.Status.GetError() {
			continue
		}
		_, _, _ = c.Named.Insert(txn, row)
	}
}

// showPolicies updates the rows of policies whose object, number of endpoints or overflow may have changed.
func (c *controller) showPolicies(txn statedb.WriteTxn) {
	if len(c.in.unshown) == 0 {
		return
	}
	for ref := range c.in.unshown {
		row, _, found := c.Policies.Get(txn, policies.ByRef(ref.String()))
		parsed := c.in.policies[ref]
		if parsed == nil {
			if delete(c.overflow.shown, ref); found {
				_, _, _ = c.Policies.Delete(txn, row)
			}
			continue
		}
		p, subjects := c.overflow.show(parsed), c.in.resolver.SubjectsOf(ref)
		if !found || row.Policy != p || row.Subjects != subjects {
			_, _, _ = c.Policies.Insert(txn, &policies.Policy{Policy: p, Subjects: subjects})
		}
	}
	c.in.unshown = map[policy.Ref]bool{} // iterating over a map takes time by its largest size
}
