package pathtest

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

const (
	// flowsInterval is the time between two tests of a path that flows use. It grows when more than flowsRate such nodes would be tested in a second.
	flowsInterval = 15 * time.Second
	flowsRate     = 10
	// flowsStep is the interval of scans of the table flows.
	flowsStep = 10 * time.Second
	// flowsFor is the maximum age of a connection that counts. Denied connections do not count, because their packets do not leave the node.
	flowsFor = 10 * time.Minute
	// flowsSpread is the time within which newly used paths are tested.
	flowsSpread = 2 * time.Second
)

// users records the nodes with which the pods of this node have recent connections.
type users struct {
	ranges clusternodes.Names // nodes by their pod ranges
	next   time.Time          // time of the next scan of the flows
	used   map[string]bool    // nodes that flows used in the last scan
	count  int                // number of paths that flows use
}

// nodeChanged updates the pod ranges of a node. Either row may be nil.
func (u *users) nodeChanged(before, after *nodes.Node) {
	if before != nil && after != nil && slices.Equal(before.CIDRs, after.CIDRs) {
		return
	}
	if before != nil {
		for _, p := range before.CIDRs {
			u.ranges.Remove(p, before.Name)
		}
	}
	if after != nil {
		for _, p := range after.CIDRs {
			u.ranges.Add(p, after.Name)
		}
	}
	u.next = time.Time{}
}

// interval returns the time between two tests of a path that flows use.
func (u *users) interval() time.Duration {
	return max(flowsInterval, time.Duration(u.count)*time.Second/flowsRate)
}

// scan marks the targets with which pods of this node have connections. It returns the time until the next scan.
func (t *tester) scan(txn statedb.ReadTxn) time.Duration {
	now := time.Now()
	if wait := t.users.next.Sub(now); wait > 0 {
		return wait
	}
	t.users.next = now.Add(flowsStep)
	used := map[string]bool{}
	for f := range t.in.Flows.All(txn) {
		if f.Verdict == flows.Denied || now.Sub(f.Last) > flowsFor {
			continue
		}
		if names := t.users.ranges.At(f.Other()); len(names) > 0 {
			used[names[len(names)-1]] = true
		}
	}
	for name := range t.users.used {
		if to := t.targets[name]; to != nil && !used[name] {
			to.flows = false
		}
	}
	t.users.used, t.users.count = used, 0
	for name := range used {
		to := t.targets[name]
		if to == nil {
			continue
		}
		t.users.count++
		if due := now.Add(rand.N(flowsSpread)); !to.flows && due.Before(to.due) {
			to.due, to.urgent = due, true
			t.waiting.put(to)
		}
		to.flows = true
	}
	return flowsStep
}
