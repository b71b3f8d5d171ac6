package noderoutes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	owner = "node-routes"
	// settle is the minimum interval between two reconciliation rounds. Each installed route changes the table routes.
	settle = 50 * time.Millisecond
	// shownProblems limits the problems in a health message.
	shownProblems = 3
)

type params struct {
	cell.In
	Config    Config
	Agent     agentconfig.Agent
	DB        *statedb.DB
	Nodes     statedb.Table[*nodes.Node]
	Routes    statedb.Table[*devices.Route]
	Devices   statedb.Table[*devices.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	MTUs      statedb.Table[mtus.MTU]
	PathTests statedb.Table[*pathtests.Test]
	Slots     statedb.Table[*nodeslots.Slot]
	Desired   desiredroutes.Writer
}

func registerController(jobs job.Group, p params) error {
	if err := p.Config.validate(p.Agent); err != nil {
		return err
	}
	p.Desired.Expect(owner)
	watchdog.Add(jobs, "want-routes", func(ctx context.Context, health cell.Health) error { return run(ctx, health, p) })
	return nil
}

// run requests routes. Until the nodes are complete, it only adds routes and keeps the routes of the previous run in the kernel: a node that boots while the
// API server is unavailable needs the routes to the nodes in the snapshot on disk.
func run(ctx context.Context, health cell.Health, p params) error {
	if !p.Config.AutoDirectNodeRoutes && !p.Agent.Tunnel() {
		err := p.Desired.Replace(owner, nil)
		health.OK("disabled: --auto-direct-node-routes=false, --routing-mode=" + agentconfig.RoutingNative)
		watchdog.Idle(ctx)
		<-ctx.Done()
		return err
	}
	r, err := follow(p)
	if err != nil {
		return err
	}
	defer r.close()
	return loop.Run(ctx, p.DB, loop.Options{Tables: []statedb.TableMeta{p.Nodes, p.Routes, p.Devices}, Pause: settle}, func(now *loop.Round) error {
		complete := now.Complete(p.Nodes)
		usable := r.upTo(now.Txn, now.Changed)
		if p.Agent.Tunnel() { // node-slots determines which routes of the previous run past the tunnel must stay
			complete = now.Complete(p.Slots) && complete
		}
		var err error
		if usable {
			err = r.write(complete)
		}
		switch {
		case usable && complete:
			r.report(health, err)
		case err != nil:
			health.Degraded("waiting for the nodes of the cluster and the routes of this node", err)
		default:
			health.OK(fmt.Sprintf("waiting for the nodes of the cluster and the routes of this node; %d routes so far", len(r.routes)))
		}
		return nil
	})
}

// report sets the health of the module. Nodes behind a gateway are not an error with --direct-routing-skip-unreachable.
func (r *routing) report(health cell.Health, err error) {
	count := len(r.routes)
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(r.faults)) {
		faults = append(faults, r.faults[name]...)
	}
	if err != nil {
		faults = append(faults, err)
	}
	through := fmt.Sprintf("%d routes into the tunnel", count)
	if r.Agent.Hybrid || r.hops > 0 {
		through = fmt.Sprintf("%d routes past the tunnel, %d into it", r.hops, count-r.hops)
	}
	if len(faults) > 0 && r.Agent.Tunnel() {
		health.Degraded(fmt.Sprintf("%s, %d ranges without a route: give nodes pod ranges outside the networks of this node", through, len(faults)),
			errors.Join(faults[:min(len(faults), shownProblems)]...))
		return
	}
	if len(faults) > 0 {
		health.Degraded(fmt.Sprintf("%d routes to nodes, %d not possible: put the nodes on one link, have the network route their pods, or set --direct-routing-skip-unreachable",
			count, len(faults)), errors.Join(faults[:min(len(faults), shownProblems)]...))
		return
	}
	if r.Agent.Tunnel() {
		health.OK(through)
		return
	}
	health.OK(fmt.Sprintf("%d routes to nodes, %d nodes behind gateways skipped", count, len(r.skipped)))
}
