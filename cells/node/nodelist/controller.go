package nodelist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podpools"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// settle is the interval between two reconciliation rounds while many nodes join. Each commit begins a round in a dozen cells and reconcilers, whose cost
	// hardly depends on the number of changed nodes.
	settle = 50 * time.Millisecond
	// burst is the number of rounds without a pause between them after a time without changes: the Node and the CiliumNode of a single node are not delayed.
	burst = 4
)

// shownProblems limits the refused claims in a health message.
const shownProblems = 3

type params struct {
	cell.In
	DB          *statedb.DB
	Agent       agentconfig.Agent
	Had         *trustedRanges
	Pools       podpools.Pools
	Table       statedb.RWTable[*nodes.Node]
	LocalNode   statedb.Table[*localnode.LocalNode]
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Sources     statedb.Table[sources.Source]
}

// controller processes changes of the objects. The cost of a round is proportional to the number of nodes whose claims overlap the claims of a changed node.
type controller struct {
	params
	initialized       func(statedb.WriteTxn)
	nodeChanges       *changefeed.Feed[*k8s.Node]
	ciliumNodeChanges *changefeed.Feed[*cilium.Node]
	self              *localnode.LocalNode // nil before the first round
	nodesKnown        bool                 // the Nodes are read; before that, a CiliumNode could claim addresses and ranges of Nodes
	resolver          *resolver
	rejected          map[string]*nodes.Node // rows with refused claims, by name
	gone              map[string]struct{}    // nodes without an object whose rows stay until the inputs are complete
}

func newController(p params) *controller {
	c := &controller{params: p, resolver: newResolver(), rejected: map[string]*nodes.Node{}, gone: map[string]struct{}{}}
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Commit()
	c.initialized = p.Table.RegisterInitializer(txn, "nodes")
	return c
}

func registerController(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "resolve-nodes", newController(p).run, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	if err := c.subscribe(); err != nil {
		return err
	}
	watched := []statedb.TableMeta{c.LocalNode, c.Nodes, c.CiliumNodes}
	err := loop.Run(ctx, c.DB, loop.Options{Tables: watched, Pause: settle, Burst: burst}, func(r *loop.Round) error {
		if err := c.round(r.Txn, r.Changed); err != nil {
			return err
		}
		if rest := c.report(health); rest > 0 {
			r.Within(rest)
		}
		if next := c.Had.next(); next > 0 {
			r.Within(next)
		}
		return nil
	})
	if err == nil {
		c.Had.flush()
		c.close()
	}
	return err
}

// subscribe follows the objects from the first change on; a retry continues where the previous attempt ended.
func (c *controller) subscribe() (err error) {
	if c.ciliumNodeChanges != nil {
		return nil
	}
	c.Had.load()
	txn := c.DB.WriteTxn(c.Nodes, c.CiliumNodes)
	defer txn.Commit()
	if c.nodeChanges, err = changefeed.Follow(txn, c.Nodes); err != nil {
		return err
	}
	if c.ciliumNodeChanges, err = changefeed.Follow(txn, c.CiliumNodes); err != nil {
		c.nodeChanges.Close()
	}
	return err
}

func (c *controller) close() {
	c.nodeChanges.Close()
	c.ciliumNodeChanges.Close()
}

// round resolves the nodes whose rows may have changed, from a snapshot.
func (c *controller) round(txn statedb.ReadTxn, changed *statedb.WatchSet) error {
	complete := changefeed.Watch(txn, changed, c.LocalNode, c.Nodes, c.CiliumNodes)
	c.follow(txn, changed)
	some := c.resolver.together()
	var k8sNodes []*k8s.Node
	var ciliumNodes []*cilium.Node
	var former []*retained
	for name := range some {
		o := c.object(txn, name)
		if o.node != nil {
			k8sNodes = append(k8sNodes, o.node)
		}
		if o.cilium != nil {
			ciliumNodes = append(ciliumNodes, o.cilium)
		}
		if o.retained != nil {
			former = append(former, o.retained)
		}
	}
	var rows []*nodes.Node
	if len(some) > 0 {
		rows = resolve(c.self, rules{c.Agent.IPAM == agentconfig.IPAMKubernetes, c.Had, c.Pools}, k8sNodes, ciliumNodes, former...)
	}
	_, own := some[c.self.Name]
	rows = slices.DeleteFunc(rows, func(n *nodes.Node) bool { return n.Name == c.self.Name && !own }) // no claim of this node overlaps the claims of these nodes
	if err := c.commit(some, rows, complete); err != nil {
		return err
	}
	c.resolver.touched = map[string]struct{}{} // a map that has grown does not shrink
	return nil
}

// follow applies the changes of the objects to the resolver.
func (c *controller) follow(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	names := map[string]struct{}{}
	apply := func(name string, deleted bool) {
		names[name] = struct{}{}
		if row, _, found := c.Table.Get(c.DB.ReadTxn(), nodes.ByName(name)); deleted && found && name != c.Agent.NodeName {
			c.Had.retain(row)
		}
	}
	for _, change := range c.nodeChanges.UpTo(txn, changed) {
		apply(change.Object.Name, change.Deleted)
	}
	for _, change := range c.ciliumNodeChanges.UpTo(txn, changed) {
		apply(change.Object.Name, change.Deleted)
	}
	for _, name := range c.Had.expire() {
		names[name] = struct{}{}
	}
	if c.self == nil { // first round
		for name := range c.Had.retained {
			names[name] = struct{}{}
		}
	}
	self, _, found := c.LocalNode.Get(txn, localnode.ByName(c.Agent.NodeName))
	if !found {
		self = &localnode.LocalNode{Name: c.Agent.NodeName}
	}
	if self != c.self {
		names[self.Name] = struct{}{}
		if old := c.self; len(c.Pools) > 0 && old != nil && (old.IPv4.NodeIP != self.IPv4.NodeIP || old.IPv6.NodeIP != self.IPv6.NodeIP) {
			for name := range c.resolver.claims { // the precedence of ranges in the pool may change
				names[name] = struct{}{}
			}
		}
		c.self = self
	}
	if !c.nodesKnown {
		source, _, more, found := c.Sources.GetWatch(txn, sources.ByTable(c.Nodes.Name()))
		changed.Add(more)
		done, _ := c.Nodes.Initialized(txn)
		if c.nodesKnown = done || !found || source.Usable(); c.nodesKnown {
			for n := range c.CiliumNodes.All(txn) {
				names[n.Name] = struct{}{}
			}
		}
	}
	for name := range names {
		c.resolver.replace(name, c.object(txn, name))
	}
}

// object returns the objects that describe a node; the zero value without any.
func (c *controller) object(txn statedb.ReadTxn, name string) (o object) {
	o.node, _, _ = c.Nodes.Get(txn, k8s.NodeByName(name))
	if c.nodesKnown {
		o.cilium, _, _ = c.CiliumNodes.Get(txn, cilium.NodeByName(name))
	}
	if name == c.self.Name {
		o.local = c.self
	} else {
		o.retained = c.Had.retained[name]
	}
	return o
}

// commit writes the rows that have changed. It deletes rows without an object only when the inputs are complete.
func (c *controller) commit(some map[string]struct{}, rows []*nodes.Node, complete bool) error {
	known := make(map[string]*nodes.Node, len(rows))
	for _, row := range rows {
		known[row.Name] = row
		c.Had.take(row.Name, c.decided(row))
		c.Had.confirm(row)
		delete(c.gone, row.Name)
	}
	for name := range some {
		delete(c.rejected, name)
		if row := known[name]; row == nil {
			c.gone[name] = struct{}{}
			c.Had.keep(name, func(netip.Prefix) bool { return false })
			c.resolver.replace(name, object{}) // without a retained claim
		} else if len(row.Refused) > 0 {
			c.rejected[name] = row
		}
	}
	now := c.DB.ReadTxn() // the table has no other writer
	rows = slices.DeleteFunc(rows, func(row *nodes.Node) bool {
		old, _, found := c.Table.Get(now, nodes.ByName(row.Name))
		return found && old.Equal(row)
	})
	done, _ := c.Table.Initialized(now)
	if len(rows) == 0 && (!complete || done && len(c.gone) == 0) {
		return nil
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range rows {
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert node %s: %w", row.Name, err)
		}
	}
	if complete {
		for name := range c.gone {
			if _, _, err := c.Table.Delete(txn, &nodes.Node{Name: name}); err != nil {
				return fmt.Errorf("delete node %s: %w", name, err)
			}
		}
		if !done || len(c.gone) > 0 { // on the first complete round, also nodes that were removed while no agent ran
			c.Had.forget(func(node string) bool {
				_, _, found := c.Table.Get(txn, nodes.ByName(node))
				return !found
			})
		}
		c.initialized(txn)
	}
	txn.Commit()
	if complete {
		clear(c.gone)
	}
	return nil
}

// decided returns the ranges of a node that its agent cannot write.
func (c *controller) decided(row *nodes.Node) []netip.Prefix {
	if c.Agent.IPAM == agentconfig.IPAMKubernetes {
		return row.CIDRs[:row.FromNode]
	}
	return row.CIDRs[:len(row.CIDRs)-row.Former]
}

// report writes the files of previous ranges and sets the health of the module: degraded while a claim is refused. It returns the time after which the files
// must be written without a change; 0 for never.
func (c *controller) report(health cell.Health) (rest time.Duration) {
	var rejected []error
	count := 0
	for _, name := range slices.Sorted(maps.Keys(c.rejected)) {
		for _, r := range c.rejected[name].Refused {
			if count++; len(rejected) < shownProblems {
				rejected = append(rejected, fmt.Errorf("node %s claims %s", name, r))
			}
		}
	}
	rest, err := c.Had.save()
	switch {
	case err != nil: // the next change retries
		health.Degraded("ranges of nodes may be unknown after a restart", err)
	case count > 0:
		health.Degraded(fmt.Sprintf("%d claims of nodes are rejected: `db show nodes` lists them", count), errors.Join(rejected...))
	default:
		health.OK(c.count())
	}
	return rest
}

// count returns the number of nodes for health.
func (c *controller) count() string {
	removed, txn := 0, c.DB.ReadTxn()
	for name := range c.Had.retained {
		if row, _, found := c.Table.Get(txn, nodes.ByName(name)); found && row.Source == nodes.Removed {
			removed++
		}
	}
	text := fmt.Sprintf("%d nodes", len(c.resolver.claims)-removed)
	if removed > 0 {
		text += fmt.Sprintf(", %d more removed (ranges retained)", removed)
	}
	return text
}
