package k8snode

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// Reasons of the condition [k8s.PathsCondition].
const (
	pathsPassed   = "PathsPassed"     // False: no path to another node has failed; in a large cluster, at most half of them
	pathsFailed   = "PathsFailed"     // True: some paths have failed; only in a small cluster
	mostFailed    = "MostPathsFailed" // True: more than half of the paths have failed, so the cause is likely on this node
	pathsUntested = "PathsNotTested"  // Unknown: the flags of this node turn the tests off
)

const (
	// pathsInterval is the minimum time between two writes of the condition, and pathsPerNode the minimum per node of the cluster: when the paths of all
	// nodes fail together, the API server gets at most 50 writes a second. With the 15 s in which pathtest finds a fault, the condition of a node of a
	// cluster of at most 600 nodes names it within 30 s.
	pathsInterval = 12 * time.Second
	pathsPerNode  = 20 * time.Millisecond
	// smallCluster is the largest number of nodes of a cluster in which one failed path sets the condition. One bad node changes the condition of all
	// others, and the API server sends each changed Node to each node: 10,000 messages with 100 nodes, 25,000,000 with 5,000.
	smallCluster = 100
	// shownPaths limits the nodes in the message.
	shownPaths = 3
)

// pathsState is the last known condition on the server and the schedule of its next write.
type pathsState struct {
	uid     string       // of the Node that was compared last
	written pathsVerdict // condition of that Node
	next    time.Time    // earliest time of the next write
	due     time.Time    // time of the pending write; zero without one
	wake    chan struct{}
	settled bool // every path has a verdict since the start
}

// pathsVerdict is the content of the condition.
type pathsVerdict struct {
	status          corev1.ConditionStatus
	reason, message string
}

// badPath is a path that has failed.
type badPath struct{ node, sentence string }

// paths returns the item for the condition of the paths to other nodes. Without the flag the item removes a condition of a previous run.
func (c controller) paths(txn statedb.ReadTxn, watch *statedb.WatchSet, node *k8s.Node) (it item, wanted bool) {
	it = item{update: nodeupdates.Update{Name: "paths", Wanted: "no " + k8s.PathsCondition, State: nodeupdates.Done}}
	if !c.Settings.pathsCondition {
		it.differs, it.write = true, c.removePaths
		return it, node.PathsDegraded != ""
	}
	verdict, waits := c.pathsVerdict(txn, watch)
	it.update.Wanted = fmt.Sprintf("%s=%s %s", k8s.PathsCondition, verdict.status, verdict.reason)
	it.differs = c.Paths.uid != node.UID || c.Paths.written != verdict || node.PathsDegraded != string(verdict.status)
	it.write = func(ctx context.Context, live *corev1.Node) error { return c.writePaths(ctx, live, verdict) }
	switch {
	case waits:
		it.wait("the first test of each path")
	case !it.differs:
		c.Paths.due = time.Time{}
	case c.Paths.delay(c.Nodes.NumObjects(txn), watch):
		it.wait(fmt.Sprintf("its turn: at most one write in %v", pathsSpacing(c.Nodes.NumObjects(txn))))
	}
	return it, true
}

// pathsSpacing returns the minimum time between two writes in a cluster of this size.
func pathsSpacing(nodes int) time.Duration {
	return max(pathsInterval, time.Duration(nodes)*pathsPerNode)
}

// delay reports whether the pending write is not due yet, and wakes the loop at the due time. A random delay spreads the writes of agents that see the same
// fault.
func (s *pathsState) delay(nodes int, watch *statedb.WatchSet) bool {
	now := time.Now()
	if s.due.IsZero() {
		s.due = now.Add(rand.N(time.Duration(max(nodes, 1)) * pathsPerNode))
		if s.next.After(s.due) {
			s.due = s.next
		}
		wake := make(chan struct{})
		s.wake = wake
		time.AfterFunc(s.due.Sub(now), func() { close(wake) })
	}
	if !now.Before(s.due) {
		return false
	}
	watch.Add(s.wake)
	return true
}

// pathsVerdict summarizes the tests of all paths. After the start it waits until each path has a verdict: test results do not survive a restart, and a
// condition with failed paths must stay until those paths have passed.
func (c controller) pathsVerdict(txn statedb.ReadTxn, watch *statedb.WatchSet) (v pathsVerdict, waits bool) {
	if !c.Agent.HealthChecking {
		return pathsVerdict{corev1.ConditionUnknown, pathsUntested, "The flags of the agent turn off the tests of the paths to other nodes"}, false
	}
	if !c.Paths.settled {
		c.Paths.settled = !c.pathsOpen(txn, watch)
	}
	all := c.badPaths(txn, watch)
	if len(all) > 0 { // the verdict depends on the number of nodes
		_, changed := c.Nodes.AllWatch(txn)
		watch.Add(changed)
	}
	nodes := c.Nodes.NumObjects(txn)
	most := 2*len(all) > nodes-1 && len(all) > 1
	switch {
	case nodes > smallCluster && !most:
		return pathsVerdict{corev1.ConditionFalse, pathsPassed, "At most half of the paths to other nodes are known to lose packets, see waggle status"}, !c.Paths.settled
	case len(all) == 0:
		return pathsVerdict{corev1.ConditionFalse, pathsPassed, "No path to another node is known to lose packets"}, !c.Paths.settled
	}
	v = pathsVerdict{corev1.ConditionTrue, pathsFailed, fmt.Sprintf("Paths to %d nodes lose packets: ", len(all))}
	if most {
		v.reason = mostFailed
	}
	var texts []string
	for _, p := range all[:min(len(all), shownPaths)] {
		texts = append(texts, p.sentence)
	}
	v.message += strings.Join(texts, "; ")
	if more := len(all) - shownPaths; more > 0 {
		v.message += fmt.Sprintf("; and %d more, see waggle status", more)
	}
	return v, false
}

// badPaths returns the paths with a fault that loses packets of pods, sorted by node. A node without any reply is not a fault of the path. With a tunnel,
// NotDirect is not a fault either, because the tunnel carries the packets that the direct path loses.
func (c controller) badPaths(txn statedb.ReadTxn, watch *statedb.WatchSet) []badPath {
	first := map[string]*pathtests.Test{}
	faults := []pathtests.Fault{pathtests.Blocked, pathtests.OneWay, pathtests.Large, pathtests.Corrupted, pathtests.Aggregates}
	if !c.Agent.Tunnel() {
		faults = append(faults, pathtests.NotDirect)
	}
	for _, fault := range faults {
		rows, changed := c.PathTests.ListWatch(txn, pathtests.ByFault(fault))
		watch.Add(changed)
		for row := range rows {
			if old := first[row.Node]; row.State == pathtests.Failed && (old == nil || slices.Index(pathtests.Kinds, row.Kind) < slices.Index(pathtests.Kinds, old.Kind)) {
				first[row.Node] = row
			}
		}
	}
	bad := make([]badPath, 0, len(first))
	for _, row := range first {
		bad = append(bad, badPath{row.Node, printable.Text(row.Sentence())})
	}
	slices.SortFunc(bad, func(a, b badPath) int { return cmp.Compare(a.node, b.node) })
	return bad
}

// pathsOpen reports whether a path has no verdict yet.
func (c controller) pathsOpen(txn statedb.ReadTxn, watch *statedb.WatchSet) bool {
	rows, changed := c.PathTests.AllWatch(txn)
	watch.Add(changed)
	for row := range rows {
		if row.Kind == pathtests.Echo && row.State == pathtests.Unknown && !row.Next.IsZero() && (row.Tested.IsZero() || row.Strikes > 0) {
			return true
		}
	}
	return !complete(txn, watch, c.PathTests)
}

// complete reports whether a table is initialized, and otherwise watches its initialization.
func complete[R any](txn statedb.ReadTxn, watch *statedb.WatchSet, table statedb.Table[R]) bool {
	done, initialized := table.Initialized(txn)
	if !done {
		watch.Add(initialized)
	}
	return done
}

// writePaths sets the condition. Its transition time is the time of the last change of its status.
func (c controller) writePaths(ctx context.Context, live *corev1.Node, v pathsVerdict) error {
	now := metav1.NewTime(time.Now())
	changed := now
	for _, old := range live.Status.Conditions {
		if old.Type != k8s.PathsCondition || old.Status != v.status {
			continue
		}
		if changed = old.LastTransitionTime; old.Reason == v.reason && old.Message == v.message {
			c.Paths.recordWrite(string(live.UID), v, time.Time{})
			return nil
		}
	}
	if err := c.patchCondition(ctx, live, corev1.NodeCondition{Type: k8s.PathsCondition, Status: v.status, Reason: v.reason, Message: v.message,
		LastHeartbeatTime: now, LastTransitionTime: changed}); err != nil {
		return err
	}
	spacing := pathsSpacing(c.Nodes.NumObjects(c.DB.ReadTxn()))
	c.Paths.recordWrite(string(live.UID), v, now.Add(spacing+rand.N(spacing/10)))
	return nil
}

// recordWrite records the condition on the Node and the earliest time of the next write.
func (s *pathsState) recordWrite(uid string, v pathsVerdict, next time.Time) {
	s.uid, s.written, s.due = uid, v, time.Time{}
	if !next.IsZero() {
		s.next = next
	}
}

// patchCondition sets a condition. A strategic patch merges conditions by their type.
func (c controller) patchCondition(ctx context.Context, live *corev1.Node, condition any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	return c.patch(ctx, types.StrategicMergePatchType, patch, live, "status")
}

// removePaths removes the condition.
func (c controller) removePaths(ctx context.Context, live *corev1.Node) error {
	if !slices.ContainsFunc(live.Status.Conditions, func(old corev1.NodeCondition) bool { return old.Type == k8s.PathsCondition }) {
		return nil
	}
	return c.patchCondition(ctx, live, map[string]any{"type": k8s.PathsCondition, "$patch": "delete"})
}
