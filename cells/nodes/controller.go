package nodes

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
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// settle is the minimum interval between two reconciliation rounds. A single change is not delayed; a burst is handled in one round.
const settle = 20 * time.Millisecond

// shownProblems limits the refused claims in a health message.
const shownProblems = 3

type controller struct {
	cell.In
	DB          *statedb.DB
	Agent       settings.Agent
	Table       statedb.RWTable[*tables.Node]
	LocalNode   statedb.Table[*localnode.LocalNode]
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	initialized := c.Table.RegisterInitializer(txn, "nodes")
	txn.Commit()
	heartbeat.AddRetried(jobs, "resolve-nodes", func(ctx context.Context, health cell.Health) error { return c.run(ctx, health, initialized) },
		100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health, initialized func(statedb.WriteTxn)) error {
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, c.DB, c.LocalNode, c.Nodes, c.CiliumNodes)
		changed := statedb.NewWatchSet()
		complete := changes.Watch(txn, changed, c.LocalNode, c.Nodes, c.CiliumNodes)
		self, _, found := c.LocalNode.Get(txn, localnode.ByName(c.Agent.NodeName))
		if !found {
			self = &localnode.LocalNode{Name: c.Agent.NodeName}
		}
		rows := resolve(self, statedb.Collect(c.Nodes.All(txn)), statedb.Collect(c.CiliumNodes.All(txn)))
		if err := c.commit(rows, complete, initialized); err != nil {
			return err
		}
		report(health, rows)
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// commit writes changed rows. It deletes rows without an object only when the inputs are complete.
func (c *controller) commit(rows []*tables.Node, complete bool, initialized func(statedb.WriteTxn)) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	known := make(map[string]bool, len(rows))
	for _, row := range rows {
		known[row.Name] = true
		if old, _, found := c.Table.Get(txn, tables.ByName(row.Name)); found && old.Equal(row) {
			continue
		}
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert node %s: %w", row.Name, err)
		}
	}
	if complete {
		for old := range c.Table.All(txn) {
			if known[old.Name] {
				continue
			}
			if _, _, err := c.Table.Delete(txn, old); err != nil {
				return fmt.Errorf("delete node %s: %w", old.Name, err)
			}
		}
		initialized(txn)
	}
	txn.Commit()
	return nil
}

// report sets the health of the module: degraded while a claim is refused.
func report(health cell.Health, rows []*tables.Node) {
	var refused []error
	count := 0
	for _, row := range rows {
		for _, r := range row.Refused {
			if count++; len(refused) < shownProblems {
				refused = append(refused, fmt.Errorf("node %s claims %s", row.Name, r))
			}
		}
	}
	if count > 0 {
		health.Degraded(fmt.Sprintf("%d claims of nodes are refused: `db show nodes` lists them", count), errors.Join(refused...))
		return
	}
	health.OK(fmt.Sprintf("%d nodes", len(rows)))
}
