package metrics

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
)

// hiveMetrics implements hive's Metrics. It ignores the duration of the stop, because the server stops as well.
type hiveMetrics struct{ populate, start *prometheus.GaugeVec }

func newHive(r *registry) hiveMetrics {
	return hiveMetrics{populate: r.gauges(hivePopulate), start: r.gauges(hiveStart)}
}

func (m hiveMetrics) PopulateDuration(d time.Duration) { m.populate.WithLabelValues().Set(d.Seconds()) }
func (m hiveMetrics) StartDuration(d time.Duration)    { m.start.WithLabelValues().Set(d.Seconds()) }
func (hiveMetrics) StopDuration(time.Duration)         {}

// jobMetrics implements job.Metrics. Jobs have few and fixed names: no job has the name of an endpoint.
type jobMetrics struct {
	errors   *prometheus.CounterVec
	duration *prometheus.SummaryVec
}

func newJobs(r *registry) jobMetrics {
	return jobMetrics{errors: r.counters(jobErrors), duration: r.summaries(jobDuration)}
}

func (m jobMetrics) JobError(name string, _ error) { m.errors.WithLabelValues(name).Inc() }

func (m jobMetrics) OneShotRunDuration(name string, d time.Duration) {
	m.duration.WithLabelValues(name, "one-shot").Observe(d.Seconds())
}

func (m jobMetrics) TimerRunDuration(name string, d time.Duration) {
	m.duration.WithLabelValues(name, "timer").Observe(d.Seconds())
}

func (m jobMetrics) ObserverRunDuration(name string, d time.Duration) {
	m.duration.WithLabelValues(name, "observer").Observe(d.Seconds())
}

func (jobMetrics) TimerTriggerStats(string, time.Duration, int) {}

// stateDBMetrics implements statedb.Metrics. Sizes and revisions are read from the tables at scrape time instead.
type stateDBMetrics struct {
	statedb.NopMetrics
	graveyard  *prometheus.GaugeVec
	contention *prometheus.CounterVec
	duration   *prometheus.SummaryVec
}

func newStateDB(r *registry) *stateDBMetrics {
	return &stateDBMetrics{graveyard: r.gauges(tableGraveyard), contention: r.counters(tableContention),
		duration: r.summaries(txnDuration)}
}

func (m *stateDBMetrics) GraveyardObjectCount(table string, n int) {
	m.graveyard.WithLabelValues(table).Set(float64(n))
}

func (m *stateDBMetrics) WriteTxnTableAcquisition(_, table string, waited time.Duration) {
	m.contention.WithLabelValues(table).Add(waited.Seconds())
}

func (m *stateDBMetrics) WriteTxnDuration(handle string, _ []string, d time.Duration) {
	m.duration.WithLabelValues(handle).Observe(d.Seconds())
}

// reconcilerMetrics implements reconciler.Metrics.
type reconcilerMetrics struct {
	duration, prune     *prometheus.SummaryVec
	errors, pruneErrors *prometheus.CounterVec
	failing             *prometheus.GaugeVec
}

func newReconciler(r *registry) reconcilerMetrics {
	return reconcilerMetrics{duration: r.summaries(reconcilerDuration), prune: r.summaries(pruneDuration),
		errors: r.counters(reconcilerErrors), pruneErrors: r.counters(pruneErrors), failing: r.gauges(reconcilerFailing)}
}

func (m reconcilerMetrics) ReconciliationDuration(id cell.FullModuleID, name, operation string, d time.Duration) {
	m.duration.WithLabelValues(id.String(), name, operation).Observe(d.Seconds())
}

func (m reconcilerMetrics) ReconciliationErrors(id cell.FullModuleID, name string, added, current int) {
	m.errors.WithLabelValues(id.String(), name).Add(float64(added))
	m.failing.WithLabelValues(id.String(), name).Set(float64(current))
}

func (m reconcilerMetrics) PruneError(id cell.FullModuleID, name string, err error) {
	if err != nil {
		m.pruneErrors.WithLabelValues(id.String(), name).Inc()
	}
}

func (m reconcilerMetrics) PruneDuration(id cell.FullModuleID, name string, d time.Duration) {
	m.prune.WithLabelValues(id.String(), name).Observe(d.Seconds())
}

// noReconciler implements reconciler.Metrics without effect.
type noReconciler struct{}

func (noReconciler) ReconciliationDuration(cell.FullModuleID, string, string, time.Duration) {}
func (noReconciler) ReconciliationErrors(cell.FullModuleID, string, int, int)                {}
func (noReconciler) PruneError(cell.FullModuleID, string, error)                             {}
func (noReconciler) PruneDuration(cell.FullModuleID, string, time.Duration)                  {}
