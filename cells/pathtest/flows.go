package pathtest

import (
	"math/rand/v2"
	"time"

	"github.com/cilium/statedb"
	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

const (
	// flowsInterval is the time between two tests of a path that flows use, up to flowsRate nodes of which are tested in a second.
	flowsInterval = 15 * time.Second
	flowsRate     = 10
	// flowsStep is the time between two looks at the table flows.
	flowsStep = 10 * time.Second
	// flowsFor is the age up to which a connection counts.
	flowsFor = 10 * time.Minute
	// flowsSpread is the time within which paths are tested that flows use now and did not before.
	flowsSpread = 2 * time.Second
)

// users knows which nodes the pods of this node talk to, by the connections that were made lately.
type users struct {
	ranges bart.Table[string] // names of nodes by their pod ranges
	next   time.Time          // of the next look at the flows
	count  int                // of the paths that flows use
}

// nodesChanged reads the pod ranges of all nodes.
func (u *users) nodesChanged(all []*nodes.Node) {
	u.ranges = bart.Table[string]{}
	for _, n := range all {
		for _, p := range n.CIDRs {
			u.ranges.Insert(p, n.Name)
		}
	}
	u.next = time.Time{}
}

// interval is the time between two tests of a path that flows use.
func (u *users) interval() time.Duration {
	return max(flowsInterval, time.Duration(u.count)*time.Second/flowsRate)
}

// look marks the targets that pods of this node have connections with. It returns the time until the next look.
func (t *tester) look(txn statedb.ReadTxn) time.Duration {
	now := time.Now()
	if wait := t.users.next.Sub(now); wait > 0 {
		return wait
	}
	t.users.next = now.Add(flowsStep)
	used := map[string]bool{}
	for f := range t.in.Flows.All(txn) {
		if now.Sub(f.Last) > flowsFor {
			continue
		}
		if name, found := t.users.ranges.Lookup(f.Other()); found {
			used[name] = true
		}
	}
	t.users.count = 0
	for name, to := range t.targets {
		if used[name] {
			t.users.count++
		}
		if due := now.Add(rand.N(flowsSpread)); used[name] && !to.flows && due.Before(to.due) {
			to.due, to.urgent = due, true
		}
		to.flows = used[name]
	}
	return flowsStep
}
