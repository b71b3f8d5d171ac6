package nodehealthprober

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
)

// rig is a prober over a fake network, in the synctest bubble of the caller.
type rig struct {
	*prober
	nodes   statedb.RWTable[*nodes.Node]
	traffic statedb.RWTable[*nodetraffic.Traffic]
	api     api
}

// addressOf returns the address of node i.
func addressOf(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
}

// nameOf returns the name of node i.
func nameOf(i int) string { return fmt.Sprintf("node-%04d", i) }

// newRig creates a prober in a cluster with a number of nodes. The first one is this node. All nodes are probed, without a sample.
func newRig(t testing.TB, net kernel, number int, changes ...func(*options)) *rig {
	t.Helper()
	db := statedb.New()
	table, err := nodehealth.NewTable(db)
	require.NoError(t, err)
	all, err := nodes.NewTable(db)
	require.NoError(t, err)
	o, err := newOptions(DefaultConfig, agentconfig.Agent{})
	require.NoError(t, err)
	o.sample = 0
	for _, change := range changes {
		change(&o)
	}
	views, err := nodeviews.NewTable(db)
	require.NoError(t, err)
	traffic, err := nodetraffic.NewTable(db)
	require.NoError(t, err)
	agent := agentconfig.Agent{NodeName: nameOf(0), ClusterName: "default", EnableIPv4: true, HealthChecking: true, EndpointHealthChecking: true}
	r := &rig{newProber(params{DB: db, Agent: agent, Options: o, Kernel: net, Table: table, Views: views, Nodes: all, Traffic: traffic, View: newView(agent)}), all, traffic, api{}}
	r.api = api{DB: db, Agent: agent, Options: o, Prober: r.prober, Nodes: all, Paths: table}
	txn := db.WriteTxn(table, all)
	r.initialized = table.RegisterInitializer(txn, "node-health")
	for i := range number {
		_, _, err := all.Insert(txn, &nodes.Node{Name: nameOf(i), Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addressOf(i)}}})
		require.NoError(t, err)
	}
	txn.Commit()
	return r
}

// start creates a prober and runs it until the test ends.
func start(t *testing.T, net kernel, number int, changes ...func(*options)) *rig {
	t.Helper()
	r := newRig(t, net, number, changes...)
	ctx, cancel := context.WithCancel(t.Context())
	health, _ := cell.NewSimpleHealth()
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.run(ctx, health); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

// states counts nodes by state.
func (r *rig) states() map[nodehealth.State]int {
	count := map[nodehealth.State]int{}
	for row := range r.table.All(r.db.ReadTxn()) {
		count[row.State()]++
	}
	return count
}

// TestProber_IntervalByTheRate_AllNodesAreProbed has the interval of two minutes that the rate determines, as the interval of ten minutes of 5,000 nodes by
// default.
func TestProber_IntervalByTheRate_AllNodesAreProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, interval = 1000, 2 * time.Minute
		net := newFake()
		r := start(t, net, number, func(o *options) { o.base = 10 * time.Second })
		if got := r.options.interval(number); got != interval || got != r.options.spread(number)*6/5 || !r.options.lean(number) {
			t.Fatalf("the interval is %v, want %v, by the rate, with half as many probes by HTTP", got, interval)
		}
		time.Sleep(interval)
		if got := r.states(); got[nodehealth.Reachable] != number {
			t.Errorf("after an interval %v, want all %d reachable", got, number)
		}
		before := net.total()
		begin := time.Now()
		const span = interval * 11 / 10 // with a margin for nodes that are due at the same time
		time.Sleep(span)
		sum := net.total()
		if most := 10*int(time.Since(begin)/time.Second) + 10; sum.echo-before.echo > most || sum.hello-before.hello > most*6/10 {
			t.Errorf("in %v %d ICMP and %d HTTP requests, want at most %d and about half of that", span, sum.echo-before.echo, sum.hello-before.hello, most)
		}
		for row := range r.table.All(r.db.ReadTxn()) {
			if row.ICMP.Asked.Before(begin) {
				t.Fatalf("node %s was probed last at %v, more than %v ago", row.Node, row.ICMP.Asked, span)
			}
		}
		time.Sleep(span)
		for row := range r.table.All(r.db.ReadTxn()) {
			if row.HTTP.Asked.Before(begin) {
				t.Fatalf("node %s was probed by HTTP last at %v, more than %v ago", row.Node, row.HTTP.Asked, 2*span)
			}
		}
	})
}

// If all nodes are dead and a client waits, the number of concurrently probed addresses is limited.
func TestProber_DeadNodes_ConcurrencyIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 1000
		net := &gauge{kernel: newFake()}
		for i := range number {
			net.kernel.(*fake).set(addressOf(i), wrong{errSilence, errSilence})
		}
		r := start(t, net, number)
		go func() { _, _ = r.requests.wait(t.Context()) }()
		time.Sleep(10 * time.Minute)
		net.mu.Lock()
		most := net.most
		net.mu.Unlock()
		if most > maxBusy || most < maxBusy/2 {
			t.Errorf("%d addresses were asked at one time, want up to %d", most, maxBusy)
		}
		if got := r.states(); got[nodehealth.Unreachable] != number {
			t.Errorf("after ten minutes %v, want all unreachable", got)
		}
	})
}

// gauge counts the concurrent HTTP requests.
type gauge struct {
	kernel
	mu        sync.Mutex
	now, most int
}

func (g *gauge) Hello(ctx context.Context, to netip.AddrPort, requester string) (time.Duration, *digest, error) {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	defer func() { g.mu.Lock(); g.now--; g.mu.Unlock() }()
	return g.kernel.Hello(ctx, to, requester)
}

// lossy loses two of three ICMP requests, and two of three HTTP requests, of each address.
type lossy struct{ *fake }

func (l lossy) Echo(ctx context.Context, to netip.Addr) (time.Duration, error) {
	l.count(to, func(c *counts) *int { return &c.echo })
	return reply(ctx, l.lost(to, func(c counts) int { return c.echo }))
}

func (l lossy) Hello(ctx context.Context, to netip.AddrPort, _ string) (time.Duration, *digest, error) {
	l.count(to.Addr(), func(c *counts) *int { return &c.hello })
	latency, err := reply(ctx, l.lost(to.Addr(), func(c counts) int { return c.hello }))
	return latency, nil, err
}

func (l lossy) lost(to netip.Addr, which func(counts) int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if which(*l.asked[to])%3 != 0 {
		return errSilence
	}
	return nil
}

func TestProber_LostPackets_AreNoVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, lossy{newFake()}, 20)
		for range 3600 {
			time.Sleep(time.Second)
			if r.states()[nodehealth.Unreachable] > 0 {
				t.Fatal("a node counts as unreachable")
			}
		}
		if got := r.states(); got[nodehealth.Reachable] != 20 {
			t.Errorf("after an hour %v, want all reachable", got)
		}
	})
}

func TestProber_DeadNode_IsUnreachableAfterThreeProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		r := start(t, net, 100)
		time.Sleep(5 * time.Minute)
		dead := addressOf(7)
		net.set(dead, wrong{errSilence, errSilence})
		net.mu.Lock()
		before := *net.asked[dead]
		net.mu.Unlock()
		died := time.Now()
		for r.states()[nodehealth.Unreachable] == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		net.mu.Lock()
		asked := net.asked[dead].echo - before.echo
		net.mu.Unlock()
		if asked != 3*DefaultConfig.Threshold {
			t.Errorf("unreachable after %d ICMP requests, want three probes of %d", asked, DefaultConfig.Threshold)
		}
		// The first probe runs within an interval, the others soon after it. Each waits for its timeout, and the loop has a step of one second.
		if took, most := time.Since(died), r.options.interval(100)+2*suspectInterval+3*(probeTimeout+2*calmStep); took > most {
			t.Errorf("unreachable after %v, want at most %v", took, most)
		}
		net.set(dead, wrong{})
		time.Sleep(r.options.base + 2*calmStep)
		if got := r.states(); got[nodehealth.Reachable] != 100 {
			t.Errorf("a minute after it has returned: %v, want all reachable", got)
		}
	})
}

// The results of a visit that began before a node's address changed do not delay the probe of the new address.
func TestProber_NewAddressDuringAVisit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		net.set(addressOf(1), wrong{errSilence, errSilence})
		r := start(t, net, 2)
		for net.total().echo < 2 { // both nodes are being probed
			time.Sleep(100 * time.Millisecond)
		}
		txn := r.db.WriteTxn(r.nodes)
		_, _, err := r.nodes.Insert(txn, &nodes.Node{Name: nameOf(1), Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addressOf(7)}}})
		txn.Commit()
		time.Sleep(probeTimeout + 5*calmStep)
		if got := r.states(); err != nil || got[nodehealth.Reachable] != 2 {
			t.Errorf("the states are %v (%v), want both nodes reachable", got, err)
		}
	})
}

// For a node without failures HTTP probes alternate between the addresses.
func TestPlan_HTTPProbesAlternate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		good := nodehealth.Check{State: nodehealth.Reachable}
		a := &nodehealth.Path{Kind: nodehealth.Host4, Addr: addressOf(1), ICMP: good, HTTP: good}
		b := &nodehealth.Path{Kind: nodehealth.Health4, Addr: addressOf(2), ICMP: good, HTTP: good}
		a.HTTP.Asked = time.Now()
		none := &nodehealth.Path{Kind: nodehealth.Host6, Unasked: "no address"}
		t0 := &target{paths: []*nodehealth.Path{a, none, b}}
		lean := false
		web := func(all bool) []bool {
			v := plan(t0, all, lean)
			if !slices.Equal(v.paths, []*nodehealth.Path{a, b}) {
				t.Errorf("asks %v", v.paths)
			}
			return v.web
		}
		if got := web(false); !slices.Equal(got, []bool{false, true}) {
			t.Errorf("HTTP is asked at %v, want the second", got)
		}
		if got := web(true); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("for a client HTTP is asked at %v, want both", got)
		}
		b.HTTP.Asked = time.Now().Add(time.Second)
		if got := web(false); !slices.Equal(got, []bool{true, false}) {
			t.Errorf("HTTP is asked at %v, want the first", got)
		}
		if lean, t0.lean = true, true; !slices.Equal(web(false), []bool{false, false}) {
			t.Error("a lean visit asks for HTTP")
		}
		if got := web(true); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("for a client a lean visit asks for HTTP at %v, want both", got)
		}
		b.ICMP.Strikes = 1
		if got := web(false); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("with a failed probe HTTP is asked at %v, want both", got)
		}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*Config){
		"--health-check-icmp-failure-threshold=21":   func(c *Config) { c.Threshold = 21 },
		"--connectivity-probe-frequency-ratio=1.5":   func(c *Config) { c.Ratio = 1.5 },
		"--health-check-probe-rate=0: use 1 to 1000": func(c *Config) { c.Rate = 0 },
		"--health-check-sample=-1: use 0 to 10000":   func(c *Config) { c.Sample = -1 },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newOptions(c, agentconfig.Agent{}); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error of a bad %s: %v", flag, err)
		}
	}
	for _, test := range []struct {
		ratio float64
		nodes int
		want  time.Duration
	}{
		{0.5, 1, 42 * time.Second}, {0.5, 3, 83 * time.Second}, {0.5, 100, 277 * time.Second}, {0.5, 1000, 415 * time.Second}, {0.5, 5000, 600 * time.Second},
		{0, 3, 14 * time.Second}, {1, 3, 152 * time.Second}, {0, 5000, 600 * time.Second}, // fewer than ten nodes per second
	} {
		c := DefaultConfig
		c.Ratio = test.ratio
		o, err := newOptions(c, agentconfig.Agent{})
		if got := o.interval(test.nodes); err != nil || got != test.want {
			t.Errorf("%d nodes with ratio %v: %v (%v), want %v", test.nodes, test.ratio, got, err, test.want)
		}
	}
}
