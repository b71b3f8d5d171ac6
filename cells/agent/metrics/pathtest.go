package metrics

import (
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// collectPathTests counts tests by result and paths by their first fault. Without tests there are no series; otherwise every result and fault has
// one, also with the value 0.
func (c *collector) collectPathTests(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	if c.PathTests.NumObjects(txn) == 0 {
		return
	}
	type key struct {
		kind  pathtests.Kind
		state pathtests.State
	}
	results, faults := map[key]int{}, map[pathtests.Fault]int{}
	counted := func(yield func(*pathtests.Test) bool) { // one pass, because a large cluster has 20,000 rows
		for row := range c.PathTests.All(txn) {
			if results[key{row.Kind, row.State}]++; !yield(row) {
				return
			}
		}
	}
	for path := range pathtests.Paths(counted) {
		if path.State == pathtests.Failed {
			faults[path.Fault.Fault]++
		}
	}
	for _, kind := range pathtests.Kinds {
		for _, state := range pathtests.States {
			c.send(out, pathTests, float64(results[key{kind, state}]), string(kind), string(state))
		}
	}
	for _, fault := range pathtests.Faults {
		c.send(out, pathFaults, float64(faults[fault]), string(fault))
	}
}

// collectNodePaths counts nodes by the mode of their path, direct or tunnel. Without --routing-mode=hybrid there are no series.
func (c *collector) collectNodePaths(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	if c.NodePaths.NumObjects(txn) == 0 {
		return
	}
	modes := map[nodepaths.Mode]int{}
	for p := range c.NodePaths.All(txn) {
		modes[p.Mode]++
	}
	for _, mode := range []nodepaths.Mode{nodepaths.Direct, nodepaths.Tunnel} {
		c.send(out, nodePaths, float64(modes[mode]), string(mode))
	}
}
