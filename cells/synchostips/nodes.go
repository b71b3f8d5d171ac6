package synchostips

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

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

// shownProblems limits the problems in a health message.
const shownProblems = 3

type nodeParams struct {
	cell.In
	DB          *statedb.DB
	Agent       settings.Agent
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Accepted    statedb.Table[*nodetable.Node]
	Slices      statedb.Table[*k8s.EndpointSlice]
	IPCache     ipcache.Writer
}

// nodes claims the addresses of nodes. A round decides about those addresses alone of which something else may hold.
type nodes struct {
	nodeParams
	all       *clusternodes.Follower
	accepted  *clusternodes.Rows      // nil without a tunnel: what nobody reads would keep deleted rows
	servers   []netip.Addr            // of the API servers
	undecided map[string]struct{}     // nodes with an object and without a row in the table nodes; empty without a tunnel
	touched   map[netip.Addr]struct{} // to be decided about
	claimed   map[netip.Addr]struct{}
	problems  map[netip.Addr][]problem
	refused   int // number of problems
}

// problem is an address of a node that is not believed.
type problem struct {
	addr netip.Addr
	node string
}

func (p problem) Error() string {
	return fmt.Sprintf("%s of node %s lies in the pod CIDR of another node", p.addr, p.node)
}

func newNodes(p nodeParams) *nodes {
	return &nodes{nodeParams: p, undecided: map[string]struct{}{}, touched: map[netip.Addr]struct{}{}, claimed: map[netip.Addr]struct{}{},
		problems: map[netip.Addr][]problem{}}
}

func registerNodes(jobs job.Group, p nodeParams) {
	heartbeat.AddRetried(jobs, "claim-nodes", newNodes(p).run, 100*time.Millisecond, time.Minute)
}

// run claims what is known; what an earlier run has left stays until all is.
func (n *nodes) run(ctx context.Context, health cell.Health) error {
	if err := n.subscribe(); err != nil {
		return err
	}
	limiter := rate.NewLimiter(rate.Every(pause), 1)
	for limiter.Wait(ctx) == nil {
		// Of the slices one is watched, that of the API servers; changes of others wake nobody.
		changed := statedb.NewWatchSet()
		n.report(health, n.round(heartbeat.Snapshot(ctx, n.DB, n.Nodes, n.CiliumNodes), changed))
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			break // stopping
		}
	}
	n.close()
	return nil
}

// subscribe follows the tables from their first row on; a retry continues where the previous attempt ended.
func (n *nodes) subscribe() (err error) {
	if n.all != nil {
		return nil
	}
	txn := n.DB.WriteTxn(n.Nodes, n.CiliumNodes, n.Accepted)
	defer txn.Commit()
	if n.Agent.Tunnel() {
		if n.accepted, err = clusternodes.FollowRows(txn, n.Accepted); err != nil {
			return err
		}
	}
	if n.all, err = clusternodes.Follow(txn, n.Nodes, n.CiliumNodes); err != nil {
		n.accepted.Close()
	}
	return err
}

func (n *nodes) close() {
	n.all.Close()
	n.accepted.Close()
}

// round claims what holds in a snapshot. It reports false while the table nodes has not decided about all nodes of which there is an object: claims without
// nodes would replace those of the previous run, and this node would drop all that comes through the tunnel.
func (n *nodes) round(txn statedb.ReadTxn, changed *statedb.WatchSet) (known bool) {
	complete := n.inputsComplete(txn, changed)
	n.follow(txn, changed)
	if len(n.undecided) > 0 {
		return false
	}
	servers := map[string][]netip.Addr{} // of the API servers, by the other node that has them
	for _, addr := range n.servers {
		owner := n.owner(txn, addr)
		servers[owner] = append(servers[owner], addr)
	}
	delete(servers, "")
	var put []ipcache.Claim
	var remove []netip.Prefix
	for addr := range n.touched {
		n.refused -= len(n.problems[addr])
		delete(n.problems, addr)
		prefix := clusternodes.Whole(addr)
		number, problems := n.identityOf(addr)
		if len(problems) > 0 {
			n.problems[addr] = problems
			n.refused += len(problems)
		}
		owner := n.owner(txn, addr)
		if number == identity.RemoteNode && slices.Contains(n.all.Node(owner).Routers, addr) &&
			slices.ContainsFunc(servers[owner], func(server netip.Addr) bool { return server.Is4() == addr.Is4() }) {
			number = identity.KubeAPIServer // its processes send from there through the tunnel
		}
		if number == identity.Unknown {
			delete(n.claimed, addr)
			remove = append(remove, prefix)
			continue
		}
		n.claimed[addr] = struct{}{}
		put = append(put, ipcache.Claim{Prefix: prefix, Identity: number, Node: owner, Source: ipcache.SourceNode})
	}
	n.touched = map[netip.Addr]struct{}{} // a map that was large stays so
	n.IPCache.Update(ipcache.OwnerNodes, put, remove, complete)
	return true
}

// follow takes over what has changed, and touches the addresses of which something else may hold.
func (n *nodes) follow(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	servers, serversChanged := clusternodes.APIServers(txn, n.Slices)
	changed.Add(serversChanged)
	for addr := range clusternodes.Differing(n.servers, servers) {
		n.touched[addr] = struct{}{}
		for _, router := range n.all.Node(n.owner(txn, addr)).Routers {
			n.touched[router] = struct{}{}
		}
	}
	n.servers = servers
	var names []string
	n.all.UpTo(txn, changed, func(before, after clusternodes.Node) {
		names = append(names, cmp.Or(after.Name, before.Name))
		for _, node := range []clusternodes.Node{before, after} {
			for _, addr := range node.All() {
				n.touched[addr] = struct{}{}
			}
		}
		for cidr := range clusternodes.Differing(before.CIDRs, after.CIDRs) {
			for addr := range n.all.NodesIn(cidr.Prefix) { // those that join in this round are touched as well
				n.touched[addr.Addr()] = struct{}{}
			}
		}
	})
	if !n.Agent.Tunnel() {
		return
	}
	n.accepted.UpTo(txn, changed, func(before, after *nodetable.Node) {
		for _, row := range []*nodetable.Node{before, after} {
			if row == nil {
				continue
			}
			names = append(names, row.Name)
			for _, a := range row.Addresses {
				n.touched[a.Addr] = struct{}{}
			}
		}
	})
	for _, name := range names {
		if delete(n.undecided, name); n.all.Node(name).Name != "" && n.accepted.All()[name] == nil {
			n.undecided[name] = struct{}{}
		}
	}
}

// owner returns the other node that has an address, by the table nodes; "" without one, and without a tunnel.
func (n *nodes) owner(txn statedb.ReadTxn, addr netip.Addr) (name string) {
	if !n.Agent.Tunnel() {
		return ""
	}
	for row := range n.Accepted.List(txn, nodetable.ByAddress(addr)) {
		if row.Source != nodetable.Local {
			name = row.Name
		}
	}
	return name
}

func (n *nodes) inputsComplete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	complete := true
	for _, t := range []statedb.TableMeta{n.Nodes, n.CiliumNodes, n.Slices} {
		if done, initialized := t.Initialized(txn); !done {
			complete = false
			changed.Add(initialized)
		}
	}
	return complete
}

// identityOf says who has an address: this node is the host, whoever writes down its addresses, the others are remote nodes, or API
// servers by the addresses of those. An API server outside the cluster stays the world's. An address in the pods' range of
// another node is nobody's but that pod's. A packet that comes through the tunnel from such an
// address must come from its peer.
func (n *nodes) identityOf(addr netip.Addr) (number uint32, problems []problem) {
	if addr.Is4() && !n.Agent.EnableIPv4 || addr.Is6() && !n.Agent.EnableIPv6 {
		return identity.Unknown, nil
	}
	names := n.all.NodesOf(addr)
	if at, found := slices.BinarySearch(names, n.Agent.NodeName); found { // what is ours stays ours
		names = slices.Concat(names[at:at+1], names[:at], names[at+1:])
	}
	for _, name := range names {
		node := n.all.Node(name)
		if n.all.HoldsPods(name, addr) {
			for _, a := range node.All() {
				if a == addr {
					problems = append(problems, problem{addr, name})
				}
			}
			continue
		}
		switch {
		case number == identity.Host:
		case name == n.Agent.NodeName:
			number = identity.Host
		case slices.Contains(node.Addrs, addr) || slices.Contains(node.Routers, addr):
			number = identity.RemoteNode
		default:
			number = identity.Health
		}
	}
	if number == identity.RemoteNode && slices.Contains(n.servers, addr) {
		number = identity.KubeAPIServer
	}
	return number, problems
}

func (n *nodes) report(health cell.Health, known bool) {
	switch {
	case !known:
		health.OK("Waiting for the nodes of the cluster")
	case n.refused > 0:
		health.Degraded(fmt.Sprintf("%d addresses of nodes are not believed", n.refused), errors.Join(n.examples()...))
	default:
		health.OK(fmt.Sprintf("%d addresses of nodes", len(n.claimed)))
	}
}

// examples returns some problems, those of this node first.
func (n *nodes) examples() (some []error) {
	all := make([]problem, 0, n.refused)
	for _, list := range n.problems {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b problem) int {
		return cmp.Or(first(a.node == n.Agent.NodeName, b.node == n.Agent.NodeName), cmp.Compare(a.node, b.node), cmp.Compare(n.place(a), n.place(b)))
	})
	for _, p := range all[:min(len(all), shownProblems)] {
		some = append(some, p)
	}
	return some
}

// place is the place of an address among those of its node.
func (n *nodes) place(p problem) int {
	node := n.all.Node(p.node)
	return slices.Index(slices.Concat(node.Health, node.Addrs, node.Routers), p.addr)
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
