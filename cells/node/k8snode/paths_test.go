package k8snode

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// pathsRig is the controller over tables of its own.
type pathsRig struct {
	controller
	tests statedb.RWTable[*pathtests.Test]
}

func newPathsRig(t *testing.T, a agentconfig.Agent, nodes int) pathsRig {
	t.Helper()
	db := statedb.New()
	tests, err := pathtests.NewTable(db)
	require.NoError(t, err)
	all, err := k8s.NewNodeTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(all)
	for i := range nodes {
		_, _, err := all.Insert(txn, &k8s.Node{Name: fmt.Sprint("n", i)})
		require.NoError(t, err)
	}
	txn.Commit()
	a.NodeName = "n0"
	return pathsRig{controller{DB: db, Nodes: all, PathTests: tests, Paths: &pathsState{}, Agent: a}, tests}
}

func (r pathsRig) verdict() (pathsVerdict, bool) {
	return r.pathsVerdict(r.DB.ReadTxn(), statedb.NewWatchSet())
}

func put[R any](t *testing.T, db *statedb.DB, table statedb.RWTable[R], rows ...R) {
	t.Helper()
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for _, row := range rows {
		_, _, err := table.Insert(txn, row)
		require.NoError(t, err)
	}
}

// A tunnel carries the packets that the direct path loses. Without a tunnel they are lost.
func TestPathsVerdict_NotDirect_IsAFaultWithoutATunnel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		agent  agentconfig.Agent
		kind   pathtests.Kind
		status corev1.ConditionStatus
	}{
		"native": {agentconfig.Agent{}, pathtests.Echo, corev1.ConditionTrue},
		"hybrid": {agentconfig.Agent{TunnelPort: 8472, Hybrid: true}, pathtests.Direct, corev1.ConditionFalse},
	} {
		c.agent.HealthChecking = true
		r := newPathsRig(t, c.agent, 5)
		put(t, r.DB, r.tests, &pathtests.Test{Node: "n1", Kind: c.kind, State: pathtests.Failed, Fault: pathtests.NotDirect, Detail: "packets of pods to node n1 are lost"},
			&pathtests.Test{Node: "n2", Kind: pathtests.Echo, State: pathtests.Failed, Fault: pathtests.Dead})
		if v, waits := r.verdict(); waits || v.status != c.status || strings.Contains(v.message, "to node n1 are lost") != (c.status == corev1.ConditionTrue) {
			t.Errorf("%s: %v, waits %v, want %s", name, v, waits, c.status)
		}
	}
}

func TestPathsVerdict_NothingIsTested_IsUnknown(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]agentconfig.Agent{"tunnel": {TunnelPort: 8472}, "native": {}} {
		if v, waits := newPathsRig(t, a, 1).verdict(); waits || v.status != corev1.ConditionUnknown || v.reason != pathsUntested {
			t.Errorf("%s: %v, waits %v", name, v, waits)
		}
	}
}

// The message names a few of many nodes, in a fixed order, and contains only printable characters.
func TestPathsVerdict_ManyPaths_MessageIsBounded(t *testing.T) {
	t.Parallel()
	r := newPathsRig(t, agentconfig.Agent{HealthChecking: true, TunnelPort: 8472}, 5000)
	var rows []*pathtests.Test
	for i := range 4000 {
		rows = append(rows, &pathtests.Test{Node: fmt.Sprintf("m%04d", i), Kind: pathtests.Size, State: pathtests.Failed, Fault: pathtests.Large,
			Detail: fmt.Sprint("the path to node m", i, "\x1b[2J carries 1400 of 1450 bytes"), Remedy: "raise the MTU"})
	}
	put(t, r.DB, r.tests, rows...)
	put(t, r.DB, r.tests, &pathtests.Test{Node: "m0001", Kind: pathtests.Echo, State: pathtests.Failed, Fault: pathtests.Blocked, Detail: "the port is blocked"})
	v, waits := r.verdict()
	want := `Paths to 4000 nodes lose packets: the path to node m0\x1b[2J carries 1400 of 1450 bytes: raise the MTU; the port is blocked; ` +
		`the path to node m2\x1b[2J carries 1400 of 1450 bytes: raise the MTU; and 3997 more, see waggle status`
	if waits || v.message != want || v.reason != mostFailed {
		t.Errorf("%v, waits %v, want the message %q", v, waits, want)
	}
}

// In a large cluster one bad node must not change the condition of all others: only most paths of a node do. The message stays the same, so that a changed
// number of bad paths causes no write.
func TestPathsVerdict_LargeCluster_IgnoresFewPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		nodes, bad int
		status     corev1.ConditionStatus
		reason     string
	}{
		{smallCluster, 0, corev1.ConditionFalse, pathsPassed},
		{smallCluster, 1, corev1.ConditionTrue, pathsFailed},
		{smallCluster + 1, 0, corev1.ConditionFalse, pathsPassed},
		{smallCluster + 1, 1, corev1.ConditionFalse, pathsPassed},
		{smallCluster + 1, smallCluster / 2, corev1.ConditionFalse, pathsPassed},
		{smallCluster + 1, smallCluster/2 + 1, corev1.ConditionTrue, mostFailed},
	} {
		r := newPathsRig(t, agentconfig.Agent{HealthChecking: true, TunnelPort: 8472}, c.nodes)
		for i := range c.bad {
			put(t, r.DB, r.tests, &pathtests.Test{Node: fmt.Sprint("n", i+1), Kind: pathtests.Echo, State: pathtests.Failed, Fault: pathtests.Blocked})
		}
		v, _ := r.verdict()
		if v.status != c.status || v.reason != c.reason {
			t.Errorf("%d of %d nodes: %v, want %s %s", c.bad, c.nodes, v, c.status, c.reason)
		}
		if c.nodes > smallCluster && v.status == corev1.ConditionFalse && !strings.HasPrefix(v.message, "At most half") {
			t.Errorf("%d of %d nodes: %q", c.bad, c.nodes, v.message)
		}
	}
}

// A cluster that becomes small while a path fails: the Node row of a removed node wakes the loop.
func TestPathsVerdict_RemovedNodes_AreNoticed(t *testing.T) {
	t.Parallel()
	r := newPathsRig(t, agentconfig.Agent{HealthChecking: true, TunnelPort: 8472}, smallCluster+1)
	put(t, r.DB, r.tests, &pathtests.Test{Node: "n1", Kind: pathtests.Echo, State: pathtests.Failed, Fault: pathtests.Blocked})
	watch := statedb.NewWatchSet()
	if v, _ := r.pathsVerdict(r.DB.ReadTxn(), watch); v.status != corev1.ConditionFalse {
		t.Fatalf("before: %v", v)
	}
	nodes := r.Nodes.(statedb.RWTable[*k8s.Node])
	txn := r.DB.WriteTxn(nodes)
	_, _, err := nodes.Delete(txn, &k8s.Node{Name: "n7"})
	require.NoError(t, err)
	txn.Commit()
	woken, err := watch.Wait(t.Context(), 0)
	if v, _ := r.verdict(); err != nil || len(woken) == 0 || v.status != corev1.ConditionTrue {
		t.Errorf("after: %v, woken %d times (%v)", v, len(woken), err)
	}
}

// In a larger cluster the first write and the following ones are spread over more time.
func TestPathsState_Delay_GrowsWithTheCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const nodes = 5000
		latest, now := time.Duration(0), time.Now()
		for range 100 {
			s := &pathsState{}
			watch := statedb.NewWatchSet()
			if !s.delay(nodes, watch) {
				continue
			}
			latest = max(latest, s.due.Sub(now))
			if s.due.Sub(now) > pathsSpacing(nodes) {
				t.Fatalf("a write is due after %v", s.due.Sub(now))
			}
		}
		if latest < pathsSpacing(nodes)/2 {
			t.Errorf("100 agents write within %v, want them spread over %v", latest, pathsSpacing(nodes))
		}
		s := &pathsState{next: now.Add(time.Hour)}
		watch := statedb.NewWatchSet()
		if !s.delay(nodes, watch) || !s.due.Equal(s.next) {
			t.Errorf("the write is due at %v, want not before %v", s.due, s.next)
		}
		woken, err := watch.Wait(t.Context(), 0)
		if err != nil || len(woken) == 0 || time.Since(now) != time.Hour || s.delay(nodes, statedb.NewWatchSet()) {
			t.Errorf("woken after %v (%v), want an hour", time.Since(now), err)
		}
		if got := pathsSpacing(3); got != pathsInterval {
			t.Errorf("three nodes write each %v, want %v", got, pathsInterval)
		}
	})
}
