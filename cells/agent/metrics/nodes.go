package metrics

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Types of events of nodes, with Cilium's names.
const (
	nodeAdded   = "add"
	nodeUpdated = "update"
	nodeDeleted = "delete"
)

type nodeParams struct {
	cell.In

	Config   Config
	Registry *registry
	DB       *statedb.DB
	Nodes    statedb.Table[*nodes.Node]
}

// registerNodes counts the changes of the table nodes. It follows the table from the start, so that an addition and a removal between two scrapes count.
func registerNodes(jobs job.Group, p nodeParams) error {
	if !p.Config.enabled() {
		return nil
	}
	txn := p.DB.WriteTxn(p.Nodes)
	feed, err := changefeed.Follow(txn, p.Nodes)
	txn.Commit()
	if err != nil {
		return err
	}
	n := nodeEvents{counts: p.Registry.counters(nodesEvents), known: map[string]nodes.Source{}}
	watchdog.Add(jobs, "count-node-events", func(ctx context.Context, _ cell.Health) error {
		defer feed.Close()
		return loop.Run(ctx, p.DB, loop.Options{Tables: []statedb.TableMeta{p.Nodes}}, func(r *loop.Round) error {
			n.count(feed.UpTo(r.Txn, r.Changed))
			return nil
		})
	})
	return nil
}

// nodeEvents counts additions, changes and removals of nodes by the source of the node's last description.
type nodeEvents struct {
	counts *prometheus.CounterVec
	known  map[string]nodes.Source // source of the last description, by name of the node
}

func (n nodeEvents) count(list []statedb.Change[*nodes.Node]) {
	for _, change := range list {
		name, event, source := change.Object.Name, nodeUpdated, change.Object.Source
		before, known := n.known[name]
		switch removed := change.Deleted || source == nodes.Removed; {
		case removed && !known:
			continue // added and removed between two rounds, or its removal is counted already
		case removed:
			event, source = nodeDeleted, before
			delete(n.known, name)
		default:
			if n.known[name] = source; !known {
				event = nodeAdded
			}
		}
		n.counts.WithLabelValues(event, string(source)).Inc()
	}
}

// collectNodes counts the nodes, including this one, and their rejected claims.
func (c *collector) collectNodes(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	rejected := 0
	for row := range c.Nodes.All(txn) {
		rejected += len(row.Refused)
	}
	c.send(out, nodesAll, float64(nodes.CountExisting(txn, c.Nodes)))
	c.send(out, nodesRefused, float64(rejected))
}

// collectNeighbors sends the sizes of the kernel's neighbour tables. There are no series if the kernel does not show them.
func (c *collector) collectNeighbors(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for row := range c.Neighbors.All(txn) {
		c.send(out, neighborEntries, float64(row.Entries), row.Family, "kernel")
		c.send(out, neighborEntries, float64(row.Expected), row.Family, "expected")
		c.send(out, neighborLimit, float64(row.Soft), row.Family, "soft")
		c.send(out, neighborLimit, float64(row.Hard), row.Family, "hard")
		c.send(out, neighborOverflows, float64(row.Overflows), row.Family)
	}
}
