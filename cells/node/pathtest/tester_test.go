package pathtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// named is the time within which a fault must be reported.
const named = 30 * time.Second

// rig is a tester over a fake network, in the synctest bubble of the caller.
type rig struct {
	*tester
	net     *fake
	nodes   statedb.RWTable[*nodes.Node]
	devices statedb.RWTable[*devices.Device]
	probes  statedb.RWTable[*nodehealth.Path]
	flows   statedb.RWTable[*flows.Flow]
	root    *cell.SimpleHealth
}

// inner and outer return the addresses of node i inside the tunnel and in the underlay.
func inner(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
func outer(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}) }

// nameOf returns the name of node i.
func nameOf(i int) string { return fmt.Sprintf("node-%04d", i) }

func nodeOf(i int) *nodes.Node {
	n := &nodes.Node{Name: nameOf(i), Source: nodes.CiliumNode, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: outer(i)}, {Type: nodes.HealthIP, Addr: inner(i)}},
		CIDRs: []netip.Prefix{netip.PrefixFrom(inner(i), 32)}}
	if i == 0 {
		n.Source = nodes.Local
	}
	return n
}

// newRig creates a tester in a cluster with a number of nodes. The first one is this node. All are on one link.
func newRig(t testing.TB, number int, changes ...func(*agentconfig.Agent)) *rig {
	t.Helper()
	db := statedb.New()
	r := &rig{net: newFake()}
	table, err := pathtests.NewTable(db)
	require.NoError(t, err)
	r.nodes, err = nodes.NewTable(db)
	require.NoError(t, err)
	r.devices, err = devices.NewTable(db)
	require.NoError(t, err)
	r.probes, err = nodehealth.NewTable(db)
	require.NoError(t, err)
	r.flows, err = flows.NewTable(db)
	require.NoError(t, err)
	paths, err := nodepaths.NewTable(db)
	require.NoError(t, err)
	routes, err := devices.NewRouteTable(db)
	require.NoError(t, err)
	neighbors, err := devices.NewNeighborTable(db)
	require.NoError(t, err)
	tunnel, err := overlays.NewTable(db)
	require.NoError(t, err)
	sizes, err := mtus.NewTable(db)
	require.NoError(t, err)
	agent := agentconfig.Agent{NodeName: nameOf(0), EnableIPv4: true, HealthChecking: true, TunnelPort: 8472, HealthPort: 4240}
	for _, change := range changes {
		change(&agent)
	}
	r.tester = newTester(params{DB: db, Agent: agent, Kernel: r.net, Table: table, Nodes: r.nodes, Overlays: tunnel, MTUs: sizes, Devices: r.devices, Health: r.probes, Flows: r.flows, Paths: paths, Routes: routes, Neighbors: neighbors})
	txn := db.WriteTxn(table, r.nodes, tunnel, sizes, r.devices, routes)
	r.initialized = table.RegisterInitializer(txn, "path-test")
	for i := range number {
		_, _, err := r.nodes.Insert(txn, nodeOf(i))
		require.NoError(t, err)
	}
	_, _, err = r.devices.Insert(txn, &devices.Device{Index: 2, Name: "eth0", MTU: 1500, Up: true})
	require.NoError(t, err)
	_, _, err = routes.Insert(txn, &devices.Route{Table: 254, Dst: netip.PrefixFrom(outer(0), 12).Masked(), LinkIndex: 2, Type: 1})
	require.NoError(t, err)
	_, _, err = tunnel.Insert(txn, &overlays.Overlay{Device: "waggle_vxlan", Port: 8472, Up: true, Status: reconciler.StatusDone()})
	require.NoError(t, err)
	_, _, err = sizes.Insert(txn, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500, RouteMTU: 1450})
	require.NoError(t, err)
	txn.Commit()
	return r
}

// start creates a tester and runs it until the test ends.
func start(t *testing.T, number int, changes ...func(*agentconfig.Agent)) *rig {
	t.Helper()
	r := newRig(t, number, changes...)
	ctx, cancel := context.WithCancel(t.Context())
	health, root := cell.NewSimpleHealth()
	r.root = root
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.run(ctx, health); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

// join adds nodes.
func (r *rig) join(t *testing.T, numbers ...int) {
	t.Helper()
	txn := r.db.WriteTxn(r.nodes)
	for _, i := range numbers {
		_, _, err := r.nodes.Insert(txn, nodeOf(i))
		require.NoError(t, err)
	}
	txn.Commit()
}

// connect inserts flows of pods of this node with pods of the given number of nodes, from the second node on.
func (r *rig) connect(t *testing.T, used int) {
	t.Helper()
	txn := r.db.WriteTxn(r.flows)
	for i := 1; i <= used; i++ {
		_, _, err := r.flows.Insert(txn, &flows.Flow{Endpoint: 1, Direction: policy.Egress, Port: uint16(i), Src: inner(0), Dst: inner(i), Last: time.Now()})
		require.NoError(t, err)
	}
	txn.Commit()
}

// path returns the path to node i with its verdict.
func (r *rig) path(i int) (p pathtests.Path) {
	for p = range pathtests.Paths(statedb.ToSeq(r.table.Prefix(r.db.ReadTxn(), pathtests.ByTest(nameOf(i), "")))) {
		break
	}
	return p
}

// await waits until a path has the given text and returns the elapsed time. It fails the test after an hour.
func (r *rig) await(t *testing.T, i int, text string) time.Duration {
	t.Helper()
	began := time.Now()
	for r.path(i).Text() != text {
		if time.Since(began) > time.Hour {
			t.Fatalf("the path to %s is %q after an hour, want %q", nameOf(i), r.path(i).Text(), text)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began)
}

// faults has the possible faults of a path, by name.
var faults = map[string]wrong{
	"blocked": {silent: true}, "1400 bytes": {mtu: 1400}, "1280 bytes": {mtu: 1280}, "size": {mtu: 600}, "checksum": {tcp: true}, "aggregates": {aggregates: true},
}

// Each fault is reported within 30 s of a join, in small and in large clusters, even while this agent tests all other nodes for the first time. Until then the
// path is unknown. The end of the fault is noticed.
func TestTester_Join_FaultsAreNamedWithin30s(t *testing.T) {
	t.Parallel()
	for _, number := range []int{1, 3, 5000} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, number)
			time.Sleep(time.Minute)
			joined := map[string]int{}
			i := number
			for fault, w := range faults {
				r.net.set(inner(i), w)
				joined[fault] = i
				i++
			}
			for _, i := range joined {
				r.join(t, i)
			}
			time.Sleep(named)
			for fault, i := range joined {
				if got := r.path(i); got.Text() != fault {
					t.Errorf("%d nodes: the path with the fault %q is %q %v after a join", number, fault, got.Text(), named)
				}
				r.net.set(inner(i), wrong{})
			}
			for _, i := range joined {
				if took := r.await(t, i, "ok"); took > named {
					t.Errorf("%d nodes: the end of a fault was noticed after %v, want %v", number, took, named)
				}
			}
		})
	}
}

// A fault that ends during a test of its path does not count as healed, which would be tested again only after the complete interval.
func TestTester_FaultEndsDuringTest_IsNotHealed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 2)
		r.net.set(inner(1), wrong{spoils: true})
		r.await(t, 1, "healed")
		for before := len(r.net.tests(inner(1))); len(r.net.tests(inner(1))) == before; {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(fetchTimeout / 2) // the request by TCP with checksums of the underlay is running
		r.net.set(inner(1), wrong{})
		time.Sleep(2 * fetchTimeout)
		if got := r.path(1).Text(); got != "ok" {
			t.Errorf("the path is %q after its fault has ended, want ok", got)
		}
	})
}

// A reachable node that node-health no longer reaches is tested at once. A node with changed addresses is tested like a new one.
func TestTester_ChangedNodes_AreTestedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 300)
		time.Sleep(time.Minute)
		r.net.set(inner(7), wrong{silent: true})
		txn := r.db.WriteTxn(r.probes)
		_, _, err := r.probes.Insert(txn, &nodehealth.Path{Node: nameOf(7), Kind: nodehealth.Health4, Addr: inner(7), ICMP: nodehealth.Check{State: nodehealth.Unreachable}})
		require.NoError(t, err)
		txn.Commit()
		if took := r.await(t, 7, "blocked"); took > 10*time.Second {
			t.Errorf("the fault of a node that does not answer probes was named after %v, want 10 s", took)
		}
		r.net.set(inner(8), wrong{silent: true})
		r.net.set(outer(8), wrong{silent: true})
		txn = r.db.WriteTxn(r.nodes)
		moved := nodeOf(8)
		moved.UID = "another"
		_, _, err = r.nodes.Insert(txn, moved)
		require.NoError(t, err)
		txn.Commit()
		time.Sleep(2 * step)
		if got := r.path(8).Text(); got != "unknown" {
			t.Errorf("the path to another machine of the same name is %q before its first test, want unknown", got)
		}
		if took := r.await(t, 8, "dead"); took > named {
			t.Errorf("a dead node was named after %v, want %v", took, named)
		}
	})
}

// When a device of this node changes, all paths are tested again.
func TestTester_OwnDeviceChanges_TestsAllPaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 40)
		time.Sleep(time.Minute)
		for i := 1; i < 40; i++ {
			r.net.set(inner(i), wrong{mtu: 1350})
		}
		time.Sleep(named)
		if got := r.path(1).Text(); got != "ok" {
			t.Fatalf("the path is %q without a test, want ok: the interval is %v", got, interval(40))
		}
		txn := r.db.WriteTxn(r.devices)
		_, _, err := r.devices.Insert(txn, &devices.Device{Index: 2, Name: "eth0", MTU: 1500, Selected: true, Up: true})
		require.NoError(t, err)
		txn.Commit()
		time.Sleep(named)
		for i := 1; i < 40; i++ {
			if got := r.path(i).Text(); got != "1350 bytes" {
				t.Errorf("the path to %s is %q, want 1350 bytes", nameOf(i), got)
			}
		}
	})
}

// A change of a device of this node does not delay the tests of paths that flows use, although the tests of all paths need minutes.
func TestTester_OwnDeviceChanges_DoesNotDelayUsedPaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used = 2000, 10
		r := start(t, number)
		time.Sleep(number*time.Second/maxRate + 10*time.Second)
		r.connect(t, used)
		time.Sleep(time.Minute)
		txn := r.db.WriteTxn(r.devices)
		_, _, err := r.devices.Insert(txn, &devices.Device{Index: 2, Name: "eth0", MTU: 1500, Selected: true, Up: true})
		require.NoError(t, err)
		txn.Commit()
		changed := time.Now()
		time.Sleep(flowsInterval + 5*time.Second)
		for i := 1; i <= used; i++ {
			if tests := r.net.tests(inner(i)); !tests[len(tests)-1].After(changed) {
				t.Errorf("the used path to %s was not tested for %v after the change of a device", nameOf(i), time.Since(changed))
			}
		}
	})
}

// Connections that a policy denies are none: their paths are not tested more often, and they do not slow the tests of used paths.
func TestTester_DeniedFlows_AreNoConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 1000
		r := start(t, number)
		time.Sleep(number*time.Second/maxRate + 10*time.Second)
		r.connect(t, 1)
		txn := r.db.WriteTxn(r.flows)
		for i := 2; i < number; i++ {
			_, _, err := r.flows.Insert(txn, &flows.Flow{Endpoint: 2, Direction: policy.Egress, Port: uint16(i), Src: inner(0), Dst: inner(i), Verdict: flows.Denied, Last: time.Now()})
			require.NoError(t, err)
		}
		txn.Commit()
		before, period := make([]int, number), 4*flowsInterval
		for i := range number {
			before[i] = len(r.net.tests(inner(i)))
		}
		time.Sleep(period + flowsStep)
		for i := 1; i < number; i++ {
			again := len(r.net.tests(inner(i))) - before[i]
			if i == 1 && again < 4 {
				t.Errorf("a used path was tested %d times in %v, want at least 4", again, period)
			}
			if i > 1 && again > 0 {
				t.Fatalf("the path to %s was tested %d times after a denied connection, want 0", nameOf(i), again)
			}
		}
	})
}

// Faults of paths that flows use are reported within 30 s, whether the flows or the fault come first, and faults of other paths in the next round. After the
// connections have ended, the path is tested like the others.
func TestTester_Flows_FaultsAreNamedWithin30s(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used = 300, 100
		r := start(t, number)
		time.Sleep(time.Minute)
		for i := 1; i < number; i++ {
			r.net.set(inner(i), wrong{mtu: 1400})
		}
		r.connect(t, used)
		time.Sleep(named)
		for i := 1; i <= used; i++ {
			if got := r.path(i).Text(); got != "1400 bytes" {
				t.Errorf("the path to %s is %q %v after its first flow, want 1400 bytes", nameOf(i), got, named)
			}
		}
		if got := r.path(used + 1).Text(); got != "ok" {
			t.Fatalf("a path without flows is %q before its next round, want ok", got)
		}
		for i := 1; i <= used; i++ {
			r.net.set(inner(i), wrong{})
		}
		time.Sleep(named)
		for i := 1; i <= used; i++ {
			if got := r.path(i).Text(); got != "ok" {
				t.Errorf("the path to %s is %q %v after its fault has ended, want ok", nameOf(i), got, named)
			}
			r.net.set(inner(i), wrong{silent: true})
		}
		time.Sleep(named)
		for i := 1; i <= used; i++ {
			if got := r.path(i).Text(); got != "blocked" {
				t.Errorf("the path to %s is %q %v after its fault began, want blocked", nameOf(i), got, named)
			}
			r.net.set(inner(i), wrong{})
		}
		time.Sleep(flowsFor + named)
		before := len(r.net.tests(inner(1)))
		time.Sleep(5 * time.Minute)
		if again := len(r.net.tests(inner(1))) - before; again > 1 {
			t.Errorf("a path without flows was tested %d times in five minutes, want once at most", again)
		}
	})
}

// One lost packet, or two in a row, are not a fault.
func TestTester_TwoLostTests_AreNoFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 2)
		r.await(t, 1, "ok")
		r.net.set(inner(1), wrong{silent: true})
		before := len(r.net.tests(inner(1)))
		for len(r.net.tests(inner(1))) < before+2 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(echoTimeout)
		r.net.set(inner(1), wrong{})
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if got := r.path(1).Text(); got != "ok" {
				t.Fatalf("the path is %q after two lost tests, want ok", got)
			}
		}
		if row, _, _ := r.table.Get(r.db.ReadTxn(), pathtests.ByTest(nameOf(1), pathtests.Echo)); row.Strikes != 0 {
			t.Errorf("%d strikes are left", row.Strikes)
		}
	})
}

// At 5,000 nodes at most 20 tests per second run (25 % more in a burst), each path is tested in each round, and the load without faults is about one test in
// three seconds, also in the round after the start. The limit also holds for a fault of this node that makes all tests fail.
func TestTester_FiveThousandNodes_LoadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 5000
		r := start(t, number)
		begun := time.Now()
		first := number*time.Second/maxRate + 10*time.Second
		time.Sleep(first)
		if s := pathtests.Summarize(statedb.ToSeq(r.table.All(r.db.ReadTxn()))); s.Passed != number-1 {
			t.Fatalf("after %v %s, want all passed", first, s)
		}
		round := interval(number)
		rest := time.Now()
		time.Sleep(round)
		atRest, minutes := 0, make([]int, int(round/time.Minute)+1)
		for i := 1; i < number; i++ {
			count := 0
			for _, at := range r.net.tests(inner(i)) {
				if at.After(rest) {
					count++
					minutes[int(at.Sub(rest)/time.Minute)]++
				}
			}
			if count == 0 || count > 2 {
				t.Fatalf("the path to %s was tested %d times in a round of %v, want once or twice", nameOf(i), count, round)
			}
			atRest += count
		}
		if perSecond := float64(atRest) / round.Seconds(); perSecond > 0.4 {
			t.Errorf("%.2f tests a second at rest, want about 0.3", perSecond)
		}
		if most := slices.Max(minutes); most > 60 {
			t.Errorf("%d tests in a minute at rest, want at most one a second", most)
		}
		for i := 1; i < number; i++ {
			r.net.set(inner(i), wrong{silent: true})
		}
		txn := r.db.WriteTxn(r.devices)
		_, _, err := r.devices.Insert(txn, &devices.Device{Index: 2, Name: "eth0", MTU: 1500, Selected: true, Up: true})
		require.NoError(t, err)
		txn.Commit()
		time.Sleep(20 * time.Minute)
		if s := pathtests.Summarize(statedb.ToSeq(r.table.All(r.db.ReadTxn()))); len(s.Failed) != number-1 {
			t.Errorf("with all paths blocked %s, want all failed", s)
		}
		seconds := make([]int, int(time.Since(begun)/time.Second)+1)
		for i := 1; i < number; i++ {
			for _, at := range r.net.tests(inner(i)) {
				seconds[int(at.Sub(begun)/time.Second)]++
			}
		}
		most := 0
		for _, n := range seconds {
			most = max(most, n)
		}
		if limit := maxRate + maxRate*int(step)/int(time.Second); most > limit || most < maxRate {
			t.Errorf("%d tests in a second at most, want %d to %d", most, maxRate, limit)
		}
	})
}

func TestInterval(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]time.Duration{1: 10 * time.Minute, 2: 10 * time.Minute, 3: 10*time.Minute + 59*time.Second, 100: 46*time.Minute + 3*time.Second, 1000: 69*time.Minute + 5*time.Second,
		5000: 5*time.Hour + 33*time.Minute + 20*time.Second} {
		if got := interval(nodes); got != want {
			t.Errorf("a round of %d nodes takes %v, want %v", nodes, got, want)
		}
	}
}
