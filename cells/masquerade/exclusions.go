package masquerade

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// exclusions follows the prefixes towards which pods keep their addresses. A round costs as much as the ranges of nodes that changed.
type exclusions struct {
	rules   rules
	rows    *clusternodes.Rows
	nodes   clusternodes.Names // by range of pods
	own     map[netip.Prefix]struct{}
	file    map[netip.Prefix]struct{}
	touched map[netip.Prefix]struct{} // prefixes that may have another reason
}

// followExclusions begins without nodes: the first [exclusions.upTo] adds all that exist.
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

// upTo takes over what has changed up to a snapshot.
func (e *exclusions) upTo(txn statedb.ReadTxn, changed *statedb.WatchSet, self []*localnode.LocalNode, file []tables.IPMasq) {
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

// rangesOf are the ranges of a node that may be excluded: an agent could claim the Internet for its CiliumNode. Of no node there are none.
func rangesOf(n *nodes.Node) []netip.Prefix {
	if n == nil {
		return nil
	}
	return n.CIDRs[:min(n.FromNode, len(n.CIDRs))]
}

// replace touches what one of two sets alone has, and returns the second.
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

// reason says why a prefix is excluded, or nothing.
func (e *exclusions) reason(p netip.Prefix) string {
	if reason, found := e.rules.excluded[p]; found {
		return reason
	}
	if _, found := e.file[p]; found {
		return tables.ByIPMasqAgent
	}
	if _, found := e.own[p]; found {
		return tables.OwnPods
	}
	if len(e.nodes.Of(p)) > 0 {
		return tables.OtherPods
	}
	return ""
}

// commit writes the rows of the prefixes that were touched. Rows that are right keep their status.
func (e *exclusions) commit(db *statedb.DB, table statedb.RWTable[*tables.Exclusion], complete bool, initialized func(statedb.WriteTxn)) error {
	if done, _ := table.Initialized(db.ReadTxn()); len(e.touched) == 0 && (done || !complete) {
		return nil
	}
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for p := range e.touched {
		old, _, found := table.Get(txn, tables.ExclusionByPrefix(p))
		want := &tables.Exclusion{Prefix: p, Reason: e.reason(p), Status: reconciler.StatusPending()}
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
	e.touched = map[netip.Prefix]struct{}{} // a map that was large stays so
	return nil
}
