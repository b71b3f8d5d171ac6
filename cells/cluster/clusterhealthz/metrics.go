package clusterhealthz

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/pkg/tables/health"
)

// The first metric has the name and labels of Cilium's operator.
var (
	identityEntries = prometheus.NewDesc("cilium_operator_identity_gc_entries", "CiliumIdentities at the last garbage collection round, by status: alive or deleted.", []string{"status"}, nil)
	identityUnused  = prometheus.NewDesc("waggle_cluster_identities_unused", "CiliumIdentities to which no CiliumEndpoint refers, at the last garbage collection round.", nil, nil)
	identityOverdue = prometheus.NewDesc("waggle_cluster_identities_overdue", "CiliumIdentities whose deletion was overdue at the end of the last garbage collection round.", nil, nil)
	leads           = prometheus.NewDesc("waggle_cluster_leader", "1 for the leader, 0 for other replicas.", nil, nil)
	degraded        = prometheus.NewDesc("waggle_cluster_modules_degraded", "Degraded parts of modules.", nil, nil)
)

// collector collects metrics from the tables of this replica. Only the leader has the metrics of identities.
type collector struct{ inputs }

// Describe implements prometheus.Collector.
func (c collector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{identityEntries, identityUnused, identityOverdue, leads, degraded} {
		all <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	txn := c.DB.ReadTxn()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for r := range c.Rounds.All(txn) {
		gauge(identityEntries, r.All-r.Deleted, "alive")
		gauge(identityEntries, r.Deleted, "deleted")
		gauge(identityUnused, r.Unused)
		gauge(identityOverdue, r.Overdue)
	}
	leading := 0
	for l := range c.Leaders.All(txn) {
		if !l.Until.IsZero() {
			leading = 1
		}
	}
	gauge(leads, leading)
	count := 0
	for range c.Modules.List(txn, health.ByLevel(health.Degraded)) {
		count++
	}
	gauge(degraded, count)
}
