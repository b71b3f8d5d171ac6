package synchostips

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

type nodeParams struct {
	cell.In
	DB      *statedb.DB
	Agent   agentconfig.Agent
	Nodes   statedb.Table[*nodes.Node]
	Slices  statedb.Table[*k8s.EndpointSlice]
	IPCache ipcache.Writer
}

// nodeClaims claims the addresses of nodes, as the table nodes assigns them. A round processes only addresses whose claim may have changed.
type nodeClaims struct {
	nodeParams
	all     *clusternodes.Follower
	servers []netip.Addr            // of the API servers
	touched map[netip.Addr]struct{} // addresses to process in the next round
	claimed map[netip.Addr]struct{}
}

func newNodes(p nodeParams) *nodeClaims {
	return &nodeClaims{nodeParams: p, touched: map[netip.Addr]struct{}{}, claimed: map[netip.Addr]struct{}{}}
}

func registerNodes(jobs job.Group, p nodeParams) {
	watchdog.AddRetried(jobs, "claim-nodes", newNodes(p).run, 100*time.Millisecond, time.Minute)
}

// run contributes the known addresses; entries of a previous run stay until all inputs are complete.
func (n *nodeClaims) run(ctx context.Context, health cell.Health) error {
	if err := n.subscribe(); err != nil {
		return err
	}
	defer n.all.Close()
	watched := []statedb.TableMeta{n.Nodes} // of the slices only the one of the API servers begins a round
	return loop.Run(ctx, n.DB, loop.Options{Tables: watched, Pause: pause}, func(r *loop.Round) error {
		n.round(r)
		health.OK(fmt.Sprintf("%d addresses of nodes", len(n.claimed)))
		return nil
	})
}

// subscribe follows the table from its first row on; a retry continues where the previous attempt ended.
func (n *nodeClaims) subscribe() (err error) {
	if n.all != nil {
		return nil
	}
	txn := n.DB.WriteTxn(n.Nodes)
	defer txn.Commit()
	n.all, err = clusternodes.Follow(txn, n.Nodes)
	return err
}

// round contributes the claims of a snapshot.
func (n *nodeClaims) round(r *loop.Round) {
	complete := r.Complete(n.Nodes, n.Slices)
	n.follow(r.Txn, r.Changed)
	servers := map[*nodes.Node][]netip.Addr{} // addresses of the API servers, by their node
	for _, addr := range n.servers {
		if owner := n.owner(addr); owner != nil {
			servers[owner] = append(servers[owner], addr)
		}
	}
	var put []ipcache.Claim
	var remove []netip.Prefix
	for addr := range n.touched {
		prefix, owner := clusternodes.Whole(addr), n.owner(addr)
		if owner == nil || addr.Is4() && !n.Agent.EnableIPv4 || addr.Is6() && !n.Agent.EnableIPv6 {
			delete(n.claimed, addr)
			remove = append(remove, prefix)
			continue
		}
		n.claimed[addr] = struct{}{}
		claim := ipcache.Claim{Prefix: prefix, Identity: n.identityOf(addr, owner, servers[owner]), Source: ipcache.SourceNode}
		if n.Agent.Tunnel() && owner.Source != nodes.Local {
			claim.Node = owner.Name
		}
		put = append(put, claim)
	}
	n.touched = map[netip.Addr]struct{}{} // a map that has grown does not shrink
	n.IPCache.Update(ipcache.OwnerNodes, put, remove, complete)
}

// follow applies the changes of the tables, and touches the addresses whose claim may have changed.
func (n *nodeClaims) follow(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	touch := func(addrs ...netip.Addr) {
		for _, addr := range addrs {
			n.touched[addr] = struct{}{}
		}
	}
	servers, serversChanged := clusternodes.APIServers(txn, n.Slices)
	changed.Add(serversChanged)
	for addr := range clusternodes.Differing(n.servers, servers) {
		touch(addr)
		touch(clusternodes.AddressesOf(n.owner(addr))...) // its routers
	}
	n.servers = servers
	n.all.UpTo(txn, changed, func(before, after *nodes.Node) {
		touch(clusternodes.AddressesOf(before)...)
		touch(clusternodes.AddressesOf(after)...)
	})
}

// owner returns the node that has an address; nil without one. The row of a removed node may be kept beside the row of the new owner of its address: this
// node has precedence, then the name that sorts first.
func (n *nodeClaims) owner(addr netip.Addr) (owner *nodes.Node) {
	for _, name := range n.all.NodesOf(addr) {
		if row := n.all.All()[name]; owner == nil || row.Source == nodes.Local {
			owner = row
		}
	}
	return owner
}

// identityOf returns the identity of an address of a node: the host for this node, otherwise API server for addresses of API servers, and remote node. An API
// server outside the cluster keeps the identity of the world. With a tunnel, processes of a node send from its router address: the router address of a node
// with an API server of the same family has the identity API server as well.
func (n *nodeClaims) identityOf(addr netip.Addr, owner *nodes.Node, servers []netip.Addr) uint32 {
	has := func(types ...string) bool {
		return slices.ContainsFunc(owner.Addresses, func(a nodes.Address) bool { return a.Addr == addr && slices.Contains(types, a.Type) })
	}
	sameFamily := func(server netip.Addr) bool { return server.Is4() == addr.Is4() }
	switch {
	case owner.Source == nodes.Local:
		return identity.Host
	case !has(nodes.InternalIP, nodes.ExternalIP, nodes.CiliumInternalIP):
		return identity.Health
	case slices.Contains(servers, addr), n.Agent.Tunnel() && has(nodes.CiliumInternalIP) && slices.ContainsFunc(servers, sameFamily):
		return identity.KubeAPIServer
	}
	return identity.RemoteNode
}
