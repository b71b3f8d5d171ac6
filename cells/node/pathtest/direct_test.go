package pathtest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

func hybrid(a *agentconfig.Agent) { a.Hybrid = true }
func native(a *agentconfig.Agent) { a.TunnelPort = 0 }

// direct returns the number of nodes that are reached directly.
func (r *rig) direct() (n int) {
	for p := range r.in.Paths.All(r.db.ReadTxn()) {
		if p.Mode == nodepaths.Direct {
			n++
		}
	}
	return n
}

// Nodes on the same link whose paths flows use are reached through the tunnel within 10 s of a fault of the direct path, and directly again within a minute of
// its end. Two failed tests in a row change nothing.
func TestTester_Direct_FaultsChangeTheMode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used = 100, 10
		r := start(t, number, hybrid)
		time.Sleep(time.Minute)
		if got := r.direct(); got != number-1 {
			t.Fatalf("%d nodes are reached past the tunnel, want %d", got, number-1)
		}
		r.connect(t, used)
		time.Sleep(time.Minute)
		fault := func(w wrong) {
			for i := 1; i <= used; i++ {
				r.net.set(inner(i), w)
			}
		}
		fault(wrong{past: true})
		time.Sleep(10 * time.Second)
		if got := r.direct(); got != number-1-used {
			t.Errorf("%d nodes are reached past the tunnel 10 s after a fault, want %d", got, number-1-used)
		}
		for i := 1; i <= used; i++ {
			if got := r.path(i).Text(); got != "not-direct" {
				t.Errorf("the path to %s is %q, want not-direct", nameOf(i), got)
			}
		}
		fault(wrong{})
		time.Sleep(time.Minute)
		if got := r.direct(); got != number-1 {
			t.Errorf("%d nodes are reached past the tunnel a minute after the fault, want %d", got, number-1)
		}
		strikesOf := func(i int) int {
			row, _, found := r.table.Get(r.db.ReadTxn(), pathtests.ByTest(nameOf(i), pathtests.Direct))
			require.True(t, found)
			return row.Strikes
		}
		fault(wrong{past: true})
		for strikesOf(1) < strikes-1 {
			time.Sleep(10 * time.Millisecond)
		}
		r.net.set(inner(1), wrong{})
		for strikesOf(1) > 0 {
			if row, _, _ := r.in.Paths.Get(r.db.ReadTxn(), nodepaths.ByNode(nameOf(1))); row.Mode != nodepaths.Direct {
				t.Fatal("two tests that failed have changed the mode")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// Each failure within an hour of the previous recovery doubles the number of tests that must pass, up to a limit. An hour without a failure resets it.
func TestAfterDirect_Relapses(t *testing.T) {
	t.Parallel()
	row := &pathtests.Test{Kind: pathtests.Direct, State: pathtests.Unknown}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pass := func() {
		now = now.Add(time.Second)
		row = afterDirect(row, passed().withDetail("by way of it"), now, time.Millisecond)
	}
	fail := func() {
		for range strikes {
			now = now.Add(time.Second)
			row = afterDirect(row, failed(pathtests.NotDirect).withDetail("lost"), now, 0)
		}
	}
	recovery := func() (tests int) {
		for row.State != pathtests.Passed {
			pass()
			tests++
		}
		return tests
	}
	pass()
	if mode, why := modeOf(row); mode != nodepaths.Direct || why != "by way of it" {
		t.Errorf("after the first test that passes the mode is %s: %s", mode, why)
	}
	for _, want := range []int{3, 6, 12, 24, 48, 48} {
		fail()
		if mode, why := modeOf(row); mode != nodepaths.Tunnel || why != "lost" {
			t.Errorf("after a failure the mode is %s: %s", mode, why)
		}
		if got := recovery(); got != want {
			t.Errorf("%d tests passed until the recovery, want %d", got, want)
		}
	}
	// While the path cannot be tested, its state is unknown. Failures before that still count.
	vanish := func() {
		now = now.Add(time.Second)
		row = afterDirect(row, unknown("no route"), now, 0)
	}
	fail()
	pass()
	vanish()
	pass()
	if mode, why := modeOf(row); mode != nodepaths.Tunnel || !strings.HasPrefix(why, "1 of 48 consecutive tests have passed after a failure") {
		t.Errorf("after one test that passes the mode is %s: %s", mode, why)
	}
	if got := new(tester).nextDirect(&target{rows: []*pathtests.Test{row}}); got != failedInterval {
		t.Errorf("the next test is after %v, want %v as after a failure", got, failedInterval)
	}
	if got := recovery() + 1; got != 48 {
		t.Errorf("%d tests passed until the recovery of a path that was unknown, want 48", got)
	}
	vanish()
	if got := recovery(); got != 48 {
		t.Errorf("%d tests passed until the recovery of a path that was unknown within an hour, want 48", got)
	}
	now = now.Add(calm)
	vanish()
	if got := recovery(); got != 1 {
		t.Errorf("%d tests passed until the recovery of a path that was unknown after a calm hour, want 1", got)
	}
	now = now.Add(calm)
	fail()
	pass()
	fail() // tests that passed in between do not count
	if got := recovery(); got != directAgain {
		t.Errorf("%d tests passed until the recovery after a calm hour, want %d", got, directAgain)
	}
}

// While thousands of nodes join, a fault of the direct paths that flows use is found nearly as fast as otherwise.
func TestTester_Direct_MassJoin_FaultOfUsedNodesIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used, joining = 100, 10, 3000
		r := start(t, number, hybrid)
		time.Sleep(time.Minute)
		r.connect(t, used)
		time.Sleep(time.Minute)
		joined := make([]int, joining)
		for i := range joined {
			joined[i] = number + i
		}
		r.join(t, joined...)
		time.Sleep(joinSpread)
		for i := 1; i <= used; i++ {
			r.net.set(inner(i), wrong{past: true})
		}
		time.Sleep(15 * time.Second)
		if tested := len(r.net.tests(inner(number + joining - 1))); r.direct() > joining {
			t.Fatalf("all nodes were tested within seconds, the last one %d times", tested)
		}
		for i := 1; i <= used; i++ {
			if row, _, _ := r.in.Paths.Get(r.db.ReadTxn(), nodepaths.ByNode(nameOf(i))); row.Mode != nodepaths.Tunnel {
				t.Errorf("%s is reached past the tunnel 15 s after a fault", nameOf(i))
			}
		}
	})
}

// Tests of many dead nodes do not delay the tests of used direct paths to others.
func TestTester_ManyDeadNodes_UsedPathsAreTested(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used, dead = 2000, 10, 1000
		r := start(t, number, hybrid)
		for i := number - dead; i < number; i++ {
			r.net.set(inner(i), wrong{silent: true})
			r.net.set(outer(i), wrong{silent: true})
		}
		time.Sleep(10 * time.Minute)
		r.connect(t, used)
		time.Sleep(time.Minute)
		if got := r.direct(); got != number-1-dead {
			t.Fatalf("%d nodes are reached past the tunnel, want %d", got, number-1-dead)
		}
		began := time.Now()
		time.Sleep(2 * time.Minute)
		for i := 1; i <= used; i++ {
			previous := began
			for _, at := range append(r.net.tests(inner(i)), time.Now()) {
				if gap := at.Sub(previous); gap > 2*directInterval {
					t.Errorf("the used path to %s was not tested for %v, want %v at most", nameOf(i), gap, 2*directInterval)
				}
				if at.After(began) {
					previous = at
				}
			}
		}
	})
}

// The load of direct tests is bounded in a large cluster, whether the network forwards pod addresses or not. A fault of a path without known flows is found in
// the next round of tests.
func TestTester_Direct_ManyNodes_LoadIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		network wrong
		direct  int
	}{"all direct": {wrong{}, 999}, "none direct": {wrong{past: true}, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directLoadIsBounded(t, c.network, c.direct)
		})
	}
}

func directLoadIsBounded(t *testing.T, network wrong, direct int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const number = 1000
		r := start(t, number, hybrid)
		for i := 1; i < number; i++ {
			r.net.set(inner(i), network)
		}
		time.Sleep(10 * time.Minute)
		if s := pathtests.Summarize(statedb.ToSeq(r.table.All(r.db.ReadTxn()))); len(s.Failed) != number-1-direct || r.direct() != direct {
			t.Fatalf("%s, and %d nodes are reached past the tunnel, want %d", s, r.direct(), direct)
		}
		count := func() (all int) {
			for i := 1; i < number; i++ {
				all += len(r.net.tests(inner(i)))
			}
			return all
		}
		before, minutes := count(), 10
		time.Sleep(time.Duration(minutes) * time.Minute)
		if perSecond := float64(count()-before) / float64(60*minutes); perSecond > 1.2*directRate {
			t.Errorf("%.1f tests a second, want about %d", perSecond, directRate)
		}
		r.net.set(inner(1), wrong{past: true})
		time.Sleep(number*time.Second/directRate + 10*time.Second)
		if want := max(0, direct-1); r.direct() != want {
			t.Errorf("%d nodes are reached past the tunnel after a fault of one, want %d", r.direct(), want)
		}
	})
}
