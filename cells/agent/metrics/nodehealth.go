package metrics

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Types of addresses, with Cilium's names.
const (
	typeNode     = "node"
	typeEndpoint = "endpoint"
)

// latencyBuckets double from 1 ms to 8 s, in seconds. failedProbe is the value of a failed probe, in seconds.
var latencyBuckets = prometheus.ExponentialBuckets(0.001, 2, 14)

const failedProbe = 60

type nodeHealthParams struct {
	cell.In

	Config   Config
	Registry *registry
	DB       *statedb.DB
	Paths    statedb.Table[*nodehealth.Path]
}

// registerNodeHealth observes the latencies of probes. Each probe is a change of the table.
func registerNodeHealth(jobs job.Group, p nodeHealthParams) error {
	if !p.Config.enabled() {
		return nil
	}
	txn := p.DB.WriteTxn(p.Paths)
	feed, err := changefeed.Follow(txn, p.Paths)
	txn.Commit()
	if err != nil {
		return err
	}
	latencies := p.Registry.histograms(healthLatency, latencyBuckets)
	watchdog.Add(jobs, "observe-node-health", func(ctx context.Context, _ cell.Health) error {
		defer feed.Close()
		return loop.Run(ctx, p.DB, loop.Options{Tables: []statedb.TableMeta{p.Paths}}, func(r *loop.Round) error {
			for _, change := range feed.UpTo(r.Txn, r.Changed) {
				if !change.Deleted {
					observe(latencies, change.Object, p.primary(r.Txn, change.Object))
				}
			}
			return nil
		})
	})
	return nil
}

// primary reports whether an address is the primary one of its kind. An IPv6 address is primary only without an IPv4 address.
func (p nodeHealthParams) primary(txn statedb.ReadTxn, row *nodehealth.Path) bool {
	switch row.Kind {
	case nodehealth.Host6:
		_, _, found := p.Paths.Get(txn, nodehealth.ByPath(row.Node, nodehealth.Host4))
		return !found
	case nodehealth.Health6:
		_, _, found := p.Paths.Get(txn, nodehealth.ByPath(row.Node, nodehealth.Health4))
		return !found
	}
	return true
}

// observe counts the result of the last probe of an address. If the last probe left out HTTP, it began later than the last probe of HTTP. A row that
// changed because pods have answered was not probed.
func observe(latencies *prometheus.HistogramVec, row *nodehealth.Path, primary bool) {
	if row.Traffic.After(row.LastProbe()) {
		return
	}
	kind, address := typeNode, "secondary"
	if row.Kind.Endpoint() {
		kind = typeEndpoint
	}
	if primary {
		address = "primary"
	}
	for _, part := range []struct {
		protocol string
		check    nodehealth.Check
	}{{"icmp", row.ICMP}, {"http", row.HTTP}} {
		switch {
		case part.check.Asked.IsZero() || part.check.Asked.Before(row.LastProbe()):
		case part.check.Error == "":
			latencies.WithLabelValues(kind, part.protocol, address).Observe(part.check.Latency.Seconds())
		case part.check.Strikes > 0: // otherwise the probe could not be sent
			latencies.WithLabelValues(kind, part.protocol, address).Observe(failedProbe)
		}
	}
}

// collectNodeHealth counts nodes by state. Without probes there are no series.
func (c *collector) collectNodeHealth(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	if c.NodeHealth.NumObjects(txn) == 0 {
		return
	}
	hosts := map[nodehealth.State]int{nodehealth.Reachable: 0, nodehealth.Unreachable: 0, nodehealth.Unknown: nodes.CountExisting(txn, c.Nodes)}
	endpoints := map[nodehealth.State]int{nodehealth.Reachable: 0, nodehealth.Unreachable: 0, nodehealth.Unknown: 0}
	for n := range nodehealth.Nodes(statedb.ToSeq(c.NodeHealth.All(txn))) {
		if row, _, found := c.Nodes.Get(txn, nodes.ByName(n.Name)); !found || row.Source == nodes.Removed {
			continue // removed a moment ago
		}
		if n.Host != "" {
			hosts[nodehealth.Unknown]-- // initially the count of all nodes
			hosts[n.Host]++
		}
		if n.Endpoint != "" {
			endpoints[n.Endpoint]++
		}
	}
	for kind, states := range map[string]map[nodehealth.State]int{typeNode: hosts, typeEndpoint: endpoints} {
		for state, n := range states {
			c.send(out, healthStatus, float64(n), kind, string(state))
		}
	}
	c.send(out, unreachableNodes, float64(hosts[nodehealth.Unreachable]))
	c.send(out, unreachableEndpoints, float64(endpoints[nodehealth.Unreachable]))
	c.send(out, viewsDiffer, float64(c.NodeViews.NumObjects(txn)))
}
