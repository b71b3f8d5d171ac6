package masquerademaps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// exclusions follows the prefixes towards which pods keep their addresses. The cost of a round is proportional to the number of changed ranges of nodes.
type exclusions struct {
	rules   rules
	rows    *clusternodes.Rows
	nodes   clusternodes.Names // by pod range
	own     map[netip.Prefix]struct{}
	file    map[netip.Prefix]struct{}
	touched map[netip.Prefix]struct{} // prefixes whose reason may have changed
}

// followExclusions starts without nodes: the first [exclusions.upTo] adds all existing nodes.
func followExclusions(db *statedb.DB, r rules, table statedb.Table[*nodes.Node]) (*exclusions, error) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	rows, err := clusternodes.FollowRows(txn, table)
	if err != nil {
		return nil, err
	}
	e := &exclusions{rules: r, rows: rows, touched: map[netip.Prefix]struct{}{}}
	for p := range r.excluded {
		e.touched[p] = struct{}{}
	}
	return e, nil
}

// upTo applies the changes up to a snapshot.
func (e *exclusions) upTo(txn statedb.ReadTxn, changed *statedb.WatchSet, self []*localnode.LocalNode, file []masquerade.IPMasq) {
	e.rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		for _, p := range rangesOf(before) {
			e.nodes.Remove(p, before.Name)
		}
		for _, p := range rangesOf(after) {
			e.nodes.Add(p, after.Name)
		}
		for p := range clusternodes.Differing(rangesOf(before), rangesOf(after)) {
			e.touched[p] = struct{}{}
		}
	})
	own, listed := map[netip.Prefix]struct{}{}, map[netip.Prefix]struct{}{}
	for _, n := range self {
		for _, p := range []netip.Prefix{n.IPv4.AllocRange, n.IPv6.AllocRange} {
			if p.IsValid() {
				own[p.Masked()] = struct{}{}
			}
		}
	}
	for _, m := range file {
		listed[m.Prefix] = struct{}{}
	}
	e.own, e.file = e.replace(e.own, own), e.replace(e.file, listed)
}

// rangesOf returns the ranges of a node that may be excluded, none for nil. Ranges of only the CiliumNode are not among them: an agent could claim the
// Internet.
func rangesOf(n *nodes.Node) []netip.Prefix {
	if n == nil {
		return nil
	}
	return n.CIDRs[:min(n.FromNode, len(n.CIDRs))]
}

// replace touches the prefixes that only one of two sets has, and returns the second set.
func (e *exclusions) replace(before, after map[netip.Prefix]struct{}) map[netip.Prefix]struct{} {
	for _, sets := range [][2]map[netip.Prefix]struct{}{{before, after}, {after, before}} {
		for p := range sets[0] {
			if _, both := sets[1][p]; !both {
				e.touched[p] = struct{}{}
			}
		}
	}
	return after
}

// reason returns why a prefix is excluded; "" if it is not.
func (e *exclusions) reason(p netip.Prefix) string {
	if reason, found := e.rules.excluded[p]; found {
		return reason
	}
	if _, found := e.file[p]; found {
		return masquerade.ByIPMasqAgent
	}
	if _, found := e.own[p]; found {
		return masquerade.OwnPods
	}
	if len(e.nodes.Of(p)) > 0 {
		return masquerade.OtherPods
	}
	return ""
}

// commit writes the rows of the touched prefixes. Unchanged rows keep their status.
func (e *exclusions) commit(db *statedb.DB, table statedb.RWTable[*masquerade.Exclusion], complete bool, initialized func(statedb.WriteTxn)) error {
	if done, _ := table.Initialized(db.ReadTxn()); len(e.touched) == 0 && (done || !complete) {
		return nil
	}
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for p := range e.touched {
		old, _, found := table.Get(txn, masquerade.ExclusionByPrefix(p))
		want := &masquerade.Exclusion{Prefix: p, Reason: e.reason(p), Status: reconciler.StatusPending()}
		var err error
		switch {
		case want.Reason == "" && found:
			_, _, err = table.Delete(txn, old)
		case want.Reason != "" && (!found || !want.Equal(old)):
			_, _, err = table.Insert(txn, want)
		}
		if err != nil {
			return fmt.Errorf("write the exclusion of %s: %w", p, err)
		}
	}
	if complete {
		initialized(txn)
	}
	txn.Commit()
	e.touched = map[netip.Prefix]struct{}{} // a map that has grown does not shrink
	return nil
}
