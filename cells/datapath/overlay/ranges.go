package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// ranges follows the pod ranges of other nodes. A pod address without a more specific claim has the identity unknown: no policy treats it as the world, and
// packets to it are not masqueraded. The same holds for the CIDRs of the cluster pool, from which nodes that this agent does not know yet have their
// ranges. With a tunnel the claim names the node behind which the address is; pods of a node without an address for the tunnel are unknown as well, but not
// reachable. Every claim to a single address has precedence over the ranges.
type ranges struct {
	agent     agentconfig.Agent
	rows      *clusternodes.Rows
	self      *nodes.Node // the row of this node; nil without one
	names     clusternodes.Names
	reached   int              // number of ranges of nodes with an address
	unreached map[string]error // nodes without an address, by name
	pools     []netip.Prefix   // CIDRs that only pods have, see [podpools.Pools.Split]
}

// followRanges starts without nodes: the first [ranges.upTo] adds all existing nodes.
func followRanges(db *statedb.DB, a agentconfig.Agent, table statedb.Table[*nodes.Node]) (*ranges, error) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	rows, err := clusternodes.FollowRows(txn, table)
	if err != nil {
		return nil, err
	}
	return &ranges{agent: a, rows: rows, unreached: map[string]error{}}, nil
}

// upTo applies the changes up to a snapshot and the CIDRs that only pods have, and returns the changed claims.
func (r *ranges) upTo(txn statedb.ReadTxn, changed *statedb.WatchSet, pools []netip.Prefix) (put []ipcache.Claim, remove []netip.Prefix) {
	touched := map[netip.Prefix]struct{}{}
	r.rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		if before != nil {
			r.leave(before, touched)
		}
		if after != nil {
			r.join(after, touched)
		}
	})
	if !slices.Equal(r.pools, pools) {
		for _, p := range slices.Concat(r.pools, pools) {
			touched[p] = struct{}{}
		}
		r.pools = pools
	}
	for p := range touched {
		names := r.names.Of(p)
		if len(names) == 0 && !slices.Contains(pools, p) {
			remove = append(remove, p)
			continue
		}
		claim := ipcache.Claim{Prefix: p, Source: ipcache.SourceGenerated}
		if r.agent.Tunnel() && len(names) > 0 {
			claim.Node = names[len(names)-1]
		}
		put = append(put, claim)
	}
	return put, remove
}

func (r *ranges) join(n *nodes.Node, touched map[netip.Prefix]struct{}) {
	if n.Source == nodes.Local {
		r.self = n
		return
	}
	known := n.Address(r.agent.UnderlayIPv6).IsValid()
	if !known && len(n.CIDRs) > 0 && n.Source != nodes.Removed {
		r.unreached[n.Name] = fmt.Errorf("node %s has no %s address for the tunnel: give it an InternalIP of %[2]s, or use another --underlay-protocol "+
			"or --routing-mode=%[3]s on all nodes", n.Name, r.agent.Underlay(), agentconfig.RoutingNative)
	}
	for _, p := range r.enabledCIDRs(n) {
		touched[p] = struct{}{}
		if r.names.Add(p, n.Name); known {
			r.reached++
		}
	}
}

func (r *ranges) leave(n *nodes.Node, touched map[netip.Prefix]struct{}) {
	if n.Source == nodes.Local {
		r.self = nil
		return
	}
	delete(r.unreached, n.Name)
	known := n.Address(r.agent.UnderlayIPv6).IsValid()
	for _, p := range r.enabledCIDRs(n) {
		touched[p] = struct{}{}
		if r.names.Remove(p, n.Name); known {
			r.reached--
		}
	}
}

// enabledCIDRs returns the pod ranges of a node in the enabled families.
func (r *ranges) enabledCIDRs(n *nodes.Node) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.CIDRs), func(p netip.Prefix) bool {
		return p.Addr().Is4() && !r.agent.EnableIPv4 || p.Addr().Is6() && !r.agent.EnableIPv6
	})
}

// problems returns the errors of nodes without an address, sorted by node name.
func (r *ranges) problems() (list []error) {
	for _, name := range slices.Sorted(maps.Keys(r.unreached)) {
		list = append(list, r.unreached[name])
	}
	return list
}
