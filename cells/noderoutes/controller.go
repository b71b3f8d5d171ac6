package noderoutes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

const (
	owner = "node-routes"
	// settle is the minimum interval between two reconciliation rounds. Each installed route changes the table routes.
	settle = 50 * time.Millisecond
	// shownProblems limits the problems in a health message.
	shownProblems = 3
)

type controller struct {
	cell.In
	Config    Config
	Agent     settings.Agent
	DB        *statedb.DB
	Nodes     statedb.Table[*nodes.Node]
	Routes    statedb.Table[*devices.Route]
	Devices   statedb.Table[*devices.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	MTUs      statedb.Table[mtus.MTU]
	PathTests statedb.Table[*pathtests.Test]
	Paths     statedb.Table[*nodepaths.Path]
	Desired   desiredroutes.Writer
}

func registerController(jobs job.Group, c controller) error {
	if err := c.Config.validate(c.Agent); err != nil {
		return err
	}
	c.Desired.Expect(owner)
	heartbeat.Add(jobs, "want-routes", c.run)
	return nil
}

// run requests routes once all inputs are complete. Until then routes of the previous run stay in the kernel, and those to nodes of the copy of the objects are
// added: a node that boots while the API server is unavailable has no others.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	if !c.Config.AutoDirectNodeRoutes && !c.Agent.Tunnel() {
		err := c.Desired.Replace(owner, nil)
		health.OK("Disabled: --auto-direct-node-routes=false, --routing-mode=" + settings.RoutingNative)
		heartbeat.Idle(ctx)
		<-ctx.Done()
		return err
	}
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Nodes, c.Routes, c.Devices)
		changed := statedb.NewWatchSet()
		if routes, problems, known := c.routes(txn, changed); known {
			if err := c.Desired.Replace(owner, routes); err != nil {
				problems = append(problems, err)
			}
			c.report(health, routes, problems)
		} else if err := c.Desired.Add(owner, routes); err != nil {
			health.Degraded("Waiting for the nodes of the cluster and the routes of this node", err)
		} else {
			health.OK(fmt.Sprintf("Waiting for the nodes of the cluster and the routes of this node; %d routes so far", len(routes)))
		}
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// routes computes the routes. It returns known=false while a table that they come from is not complete, and none before the kernel's are.
func (c *controller) routes(txn statedb.ReadTxn, changed *statedb.WatchSet) (routes []desiredroutes.Route, problems []error, known bool) {
	known = changes.Watch(txn, changed, c.Nodes)
	if !changes.Watch(txn, changed, c.Routes, c.Devices) {
		return nil, nil, false
	}
	all := statedb.Collect(c.Nodes.All(txn))
	network := onlink.Read(statedb.Collect(c.Routes.All(txn)), statedb.Collect(c.Devices.All(txn)))
	if !c.Agent.Tunnel() {
		routes, problems = routesTo(all, network)
		return routes, problems, known
	}
	known = changes.Watch(txn, changed, c.LocalNode, c.MTUs) && known
	mtu, _, found := c.MTUs.Get(txn, mtus.ByPrefix(mtus.Default))
	for self := range c.LocalNode.All(txn) {
		if !self.Ready || !found { // its router addresses are not known
			break
		}
		carried, carriedChanged := pathtests.Carried(txn, c.PathTests)
		changed.Add(carriedChanged)
		t := tunnel{network: network, self: self, mtu: mtu.RouteMTU, less: carried}
		if c.Agent.Hybrid {
			t.metric = tunnelMetric
			direct, directChanged := nodepaths.Directs(txn, c.Paths)
			changed.Add(directChanged)
			routes = t.direct(all, direct)
		}
		through, problems := t.routes(all)
		return append(routes, through...), problems, known
	}
	return nil, nil, false
}

// report sets the health of the module. Nodes behind a gateway are not an error with --direct-routing-skip-unreachable.
func (c *controller) report(health cell.Health, routes []desiredroutes.Route, problems []error) {
	count := len(routes)
	skipped := map[string]bool{} // a node has up to two address families
	var faults []error
	for _, p := range problems {
		if u := (unreachable{}); errors.As(p, &u) && c.Config.DirectRoutingSkipUnreachable {
			skipped[u.node] = true
		} else {
			faults = append(faults, p)
		}
	}
	through := fmt.Sprintf("%d routes into the tunnel", count)
	if c.Agent.Hybrid {
		past := 0
		for _, r := range routes {
			if r.Gw.IsValid() {
				past++
			}
		}
		through = fmt.Sprintf("%d routes past the tunnel, %d into it", past, count-past)
	}
	if len(faults) > 0 && c.Agent.Tunnel() {
		health.Degraded(fmt.Sprintf("%s, %d ranges without one: give nodes pod ranges that no network of this node has", through, len(faults)),
			errors.Join(faults[:min(len(faults), shownProblems)]...))
		return
	}
	if len(faults) > 0 {
		health.Degraded(fmt.Sprintf("%d routes to nodes, %d not possible: put the nodes on one link, have the network route their pods, or set --direct-routing-skip-unreachable",
			count, len(faults)), errors.Join(faults[:min(len(faults), shownProblems)]...))
		return
	}
	if c.Agent.Tunnel() {
		health.OK(through)
		return
	}
	health.OK(fmt.Sprintf("%d routes to nodes, %d nodes behind gateways skipped", count, len(skipped)))
}
