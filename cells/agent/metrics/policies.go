package metrics

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
)

// collectPolicies sends the number of policies, their use of the maps, and their parts that are not enforced.
func (c *collector) collectPolicies(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	modes := map[string]int{"enforce": 0, "audit": 0}
	problems := map[string]int{policy.ReasonUnsupported: 0, policy.ReasonInvalid: 0, policy.ReasonLabel: 0, policy.ReasonAbsent: 0, policy.ReasonOverflow: 0}
	for row := range c.Policies.All(txn) {
		if row.Audit {
			modes["audit"]++
		} else {
			modes["enforce"]++
		}
		for _, p := range row.Problems {
			problems[p.Reason]++
		}
	}
	entries, ranges, stuck := 0, 0, 0
	for row := range c.Compiled.All(txn) {
		entries += row.Entries
		ranges += row.Ranges
		if row.Status.Kind == reconciler.StatusKindError {
			stuck++
		}
	}
	for mode, n := range modes {
		c.send(out, policyObjects, float64(n), mode)
	}
	for reason, n := range problems {
		c.send(out, policyNotEnforced, float64(n), reason)
	}
	c.send(out, policyEntries, float64(entries), bpf.MapPolicy)
	c.send(out, policyEntries, float64(ranges), bpf.MapPolicyRanges)
	c.send(out, policyStuck, float64(stuck))
	verdicts := map[flows.Verdict]int{flows.Allowed: 0, flows.Denied: 0, flows.Audited: 0}
	for row := range c.Recent.All(txn) {
		verdicts[row.Verdict]++
	}
	for verdict, n := range verdicts {
		c.send(out, policyFlows, float64(n), string(verdict))
	}
	progress, _, _ := c.Progress.Get(txn, policyprogress.Row)
	c.send(out, policyRevision, float64(progress.Revision))
}
