package metrics

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// collectServices sends the number of services, their faults, and the use of their maps. Metrics for alerts are sent also with the value 0.
func (c *collector) collectServices(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	types, impaired := map[string]int{"ClusterIP": 0, "NodePort": 0, "LoadBalancer": 0, "HostPort": 0}, 0
	for row := range c.Services.All(txn) {
		types[row.Type]++
		if len(row.Problems) > 0 {
			impaired++
		}
	}
	kinds := map[frontends.Kind]int{frontends.ClusterIP: 0, frontends.NodePort: 0, frontends.HostPort: 0, frontends.LoadBalancer: 0, frontends.ExternalIP: 0}
	failed, rejected := 0, 0
	for row := range c.Frontends.All(txn) {
		kinds[row.Kind]++
		rejected += len(row.Refused)
		if row.Status.Kind == reconciler.StatusKindError {
			failed++
		}
	}
	states := map[backends.State]int{backends.Active: 0, backends.Terminating: 0, backends.NotReady: 0}
	for row := range c.Backends.All(txn) {
		states[row.State]++
	}
	for kind, n := range types {
		c.send(out, serviceCount, float64(n), kind)
	}
	for kind, n := range kinds {
		c.send(out, serviceFrontends, float64(n), string(kind))
	}
	for state, n := range states {
		c.send(out, serviceBackends, float64(n), string(state))
	}
	c.send(out, serviceProblems, float64(impaired))
	c.send(out, serviceFailed, float64(failed))
	c.send(out, serviceRefused, float64(rejected))
	for row := range c.ServiceMaps.All(txn) {
		c.send(out, serviceMapEntries, float64(row.Entries), row.Map)
		c.send(out, serviceMapRefused, float64(row.Refused), row.Map)
	}
}
