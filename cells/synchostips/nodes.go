package synchostips

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	nodetable "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// nodes claims the addresses of nodes.
type nodes struct {
	cell.In
	DB          *statedb.DB
	Agent       settings.Agent
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Accepted    statedb.Table[*nodetable.Node]
	Slices      statedb.Table[*k8s.EndpointSlice]
	IPCache     ipcache.Writer
}

func registerNodes(jobs job.Group, n nodes) {
	heartbeat.Add(jobs, "claim-nodes", n.run)
}

// run claims what is known; what an earlier run has left stays until all is.
func (n *nodes) run(ctx context.Context, health cell.Health) error {
	limiter := rate.NewLimiter(rate.Every(pause), 1)
	for limiter.Wait(ctx) == nil {
		// Of the slices one is watched, that of the API servers; changes of others wake nobody.
		txn := heartbeat.Snapshot(ctx, n.DB, n.Nodes, n.CiliumNodes)
		changed := statedb.NewWatchSet()
		complete := n.inputsComplete(txn, changed)
		servers, serversChanged := clusternodes.APIServers(txn, n.Slices)
		changed.Add(serversChanged)

		owners, known := n.owners(txn, changed)
		if !known {
			// Claims without nodes would replace those of the previous run, and this node would drop all that comes through the tunnel.
			health.OK("Waiting for the nodes of the cluster")
			heartbeat.Idle(ctx)
			if _, err := changed.Wait(ctx, 0); err != nil {
				return nil // stopping
			}
			continue
		}

		claims, problems := nodeClaims(n.Agent, clusternodes.Read(txn, n.Nodes, n.CiliumNodes), servers, owners)

		n.IPCache.Replace(ipcache.OwnerNodes, claims, complete)
		if len(problems) > 0 {
			health.Degraded(fmt.Sprintf("%d addresses of nodes are not believed", len(problems)),
				errors.Join(problems[:min(len(problems), 3)]...))
		} else {
			health.OK(fmt.Sprintf("%d addresses of nodes", len(claims)))
		}
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// owners finds the node of each address of another node, and reports whether the table nodes has decided about all nodes of which there is an object. It is
// empty without a tunnel.
func (n *nodes) owners(txn statedb.ReadTxn, changed *statedb.WatchSet) (_ map[netip.Addr]string, known bool) {
	if !n.Agent.Tunnel() {
		return nil, true
	}
	rows, rowsChanged := n.Accepted.AllWatch(txn)
	changed.Add(rowsChanged)
	decided := func(name string) bool {
		_, _, found := n.Accepted.Get(txn, nodetable.ByName(name))
		return found
	}
	for node := range n.Nodes.All(txn) {
		if !decided(node.Name) {
			return nil, false
		}
	}
	for node := range n.CiliumNodes.All(txn) {
		if !decided(node.Name) {
			return nil, false
		}
	}
	owners := map[netip.Addr]string{}
	for row := range rows {
		if row.Source == nodetable.Local {
			continue
		}
		for _, a := range row.Addresses {
			owners[a.Addr] = row.Name
		}
	}
	return owners, true
}

func (n *nodes) inputsComplete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	complete := true
	for _, t := range []statedb.TableMeta{n.Nodes, n.CiliumNodes, n.Slices} {
		if done, initialized := t.Initialized(txn); !done {
			complete = false
			changed.Add(initialized)
		}
	}
	_, a := n.Nodes.AllWatch(txn)
	_, b := n.CiliumNodes.AllWatch(txn)
	changed.Add(a, b)
	return complete
}

// nodeClaims says who nodes are: this one is the host, whoever writes down its addresses, the others are remote nodes, or API
// servers by the addresses of those. An API server outside the cluster stays the world's. An address in the pods' range of
// another node is nobody's but that pod's. A packet that comes through the tunnel from such an
// address must come from its peer.
func nodeClaims(a settings.Agent, all clusternodes.All, servers []netip.Addr, owners map[netip.Addr]string) (claims []ipcache.Claim, problems []error) {
	index := all.Index()
	who := map[netip.Addr]uint32{}
	claim := func(node string, addr netip.Addr, number uint32) {
		switch {
		case addr.Is4() && !a.EnableIPv4 || addr.Is6() && !a.EnableIPv6:
		case index.HoldsPods(node, addr):
			problems = append(problems, fmt.Errorf("%s of node %s lies in the pod CIDR of another node", addr, node))
		case who[addr] != identity.Host: // what is ours stays ours
			who[addr] = number
		}
	}
	slices.SortStableFunc(all, func(x, y clusternodes.Node) int { return first(x.Name == a.NodeName, y.Name == a.NodeName) })
	for _, n := range all {
		number, health := identity.RemoteNode, identity.Health
		if n.Name == a.NodeName {
			number, health = identity.Host, identity.Host
		}
		for _, addr := range n.Health {
			claim(n.Name, addr, health)
		}
		for _, addr := range slices.Concat(n.Addrs, n.Routers) {
			claim(n.Name, addr, number)
		}
	}
	for _, addr := range servers {
		if who[addr] == identity.RemoteNode {
			who[addr] = identity.KubeAPIServer
		}
	}
	for addr, number := range who {
		claims = append(claims, ipcache.Claim{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Identity: number, Node: owners[addr], Source: ipcache.SourceNode})
	}
	slices.SortFunc(claims, func(x, y ipcache.Claim) int { return x.Prefix.Addr().Compare(y.Prefix.Addr()) })
	return claims, problems
}

// first orders what is so before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
