package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	agent "github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// ranges follows the pod ranges of other nodes. The identity of a pod of which nothing else is known is unknown: no policy takes it for the world, and nothing that
// is sent to it gets the address of this node. With a tunnel its node is reached through it; pods of a node without an address for the tunnel are unknown as well,
// but they are not reached. The ranges lose against every claim to an address itself.
type ranges struct {
	agent     agent.Agent
	rows      *clusternodes.Rows
	self      *nodes.Node // the row of this node; nil without one
	names     clusternodes.Names
	reached   int              // number of ranges of nodes with an address
	unreached map[string]error // nodes without an address, by name
}

// followRanges begins without nodes: the first [ranges.upTo] adds all that exist.
func followRanges(db *statedb.DB, a agent.Agent, table statedb.Table[*nodes.Node]) (*ranges, error) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	rows, err := clusternodes.FollowRows(txn, table)
	if err != nil {
		return nil, err
	}
	return &ranges{agent: a, rows: rows, unreached: map[string]error{}}, nil
}

// upTo takes over what has changed up to a snapshot, and returns the changes of claims to ranges.
func (r *ranges) upTo(txn statedb.ReadTxn, changed *statedb.WatchSet) (put []ipcache.Claim, remove []netip.Prefix) {
	touched := map[netip.Prefix]struct{}{}
	r.rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		if before != nil {
			r.leave(before, touched)
		}
		if after != nil {
			r.join(after, touched)
		}
	})
	for p := range touched {
		if names := r.names.Of(p); len(names) > 0 {
			claim := ipcache.Claim{Prefix: p, Source: ipcache.SourceGenerated}
			if r.agent.Tunnel() {
				claim.Node = names[len(names)-1]
			}
			put = append(put, claim)
		} else {
			remove = append(remove, p)
		}
	}
	return put, remove
}

func (r *ranges) join(n *nodes.Node, touched map[netip.Prefix]struct{}) {
	if n.Source == nodes.Local {
		r.self = n
		return
	}
	known := n.Address(r.agent.UnderlayIPv6).IsValid()
	if !known && len(n.CIDRs) > 0 {
		r.unreached[n.Name] = fmt.Errorf("node %s has no %s address for the tunnel: give it an InternalIP of %[2]s, or use another --underlay-protocol "+
			"or --routing-mode=%[3]s on all nodes", n.Name, r.agent.Underlay(), agent.RoutingNative)
	}
	for _, p := range r.of(n) {
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
	for _, p := range r.of(n) {
		touched[p] = struct{}{}
		if r.names.Remove(p, n.Name); known {
			r.reached--
		}
	}
}

// of are the pod ranges of a node in the enabled families.
func (r *ranges) of(n *nodes.Node) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.CIDRs), func(p netip.Prefix) bool {
		return p.Addr().Is4() && !r.agent.EnableIPv4 || p.Addr().Is6() && !r.agent.EnableIPv6
	})
}

// problems are the nodes without an address, in the order of their names.
func (r *ranges) problems() (list []error) {
	for _, name := range slices.Sorted(maps.Keys(r.unreached)) {
		list = append(list, r.unreached[name])
	}
	return list
}
