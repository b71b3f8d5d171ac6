package nodehealth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/settings"
	tables "github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// rig is a prober over a fake network, in the bubble of the caller.
type rig struct {
	*prober
	nodes statedb.RWTable[*nodes.Node]
	api   api
}

// addressOf is the address of the i-th node.
func addressOf(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
}

// nameOf is the name of the i-th node.
func nameOf(i int) string { return fmt.Sprintf("node-%04d", i) }

// newRig makes a prober in a cluster of so many nodes. The first one is this node.
func newRig(t testing.TB, net kernel, number int) *rig {
	t.Helper()
	db := statedb.New()
	table, err := tables.NewTable(db)
	require.NoError(t, err)
	all, err := nodes.NewTable(db)
	require.NoError(t, err)
	o, err := newOptions(DefaultConfig)
	require.NoError(t, err)
	agent := settings.Agent{NodeName: nameOf(0), ClusterName: "default", EnableIPv4: true, HealthChecking: true, EndpointHealthChecking: true}
	r := &rig{newProber(params{DB: db, Agent: agent, Options: o, Kernel: net, Table: table, Nodes: all}), all, api{}}
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

// start makes a prober and runs it until the test ends.
func start(t *testing.T, net kernel, number int) *rig {
	t.Helper()
	r := newRig(t, net, number)
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
func (r *rig) states() map[tables.State]int {
	count := map[tables.State]int{}
	for row := range r.table.All(r.db.ReadTxn()) {
		count[row.State()]++
	}
	return count
}

func TestProber_FiveThousandNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 5000
		net := newFake()
		r := start(t, net, number)
		time.Sleep(10 * time.Minute)
		if got := r.states(); got[tables.Reachable] != number {
			t.Errorf("after ten minutes %v, want all %d reachable", got, number)
		}
		before := net.total()
		begin := time.Now()
		time.Sleep(11 * time.Minute) // an interval, and room for what is due at the same time
		sum := net.total()
		if most := 10*int(time.Since(begin)/time.Second) + 10; sum.echo-before.echo > most || sum.hello-before.hello > most*6/10 {
			t.Errorf("in eleven minutes %d ICMP and %d HTTP requests, want at most %d and about half of that", sum.echo-before.echo, sum.hello-before.hello, most)
		}
		for row := range r.table.All(r.db.ReadTxn()) {
			if row.ICMP.Asked.Before(begin) {
				t.Fatalf("node %s was probed last at %v, more than eleven minutes ago", row.Node, row.ICMP.Asked)
			}
		}
		time.Sleep(11 * time.Minute)
		for row := range r.table.All(r.db.ReadTxn()) {
			if row.HTTP.Asked.Before(begin) {
				t.Fatalf("node %s was probed by HTTP last at %v, more than twenty minutes ago", row.Node, row.HTTP.Asked)
			}
		}
	})
}

// With all nodes dead and a client that waits, the addresses that are asked at one time are limited.
func TestProber_DeadNodes_AreAskedFewAtOneTime(t *testing.T) {
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
		if got := r.states(); got[tables.Unreachable] != number {
			t.Errorf("after ten minutes %v, want all unreachable", got)
		}
	})
}

// gauge counts the HTTP requests at one time.
type gauge struct {
	kernel
	mu        sync.Mutex
	now, most int
}

func (g *gauge) Hello(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	defer func() { g.mu.Lock(); g.now--; g.mu.Unlock() }()
	return g.kernel.Hello(ctx, to)
}

// lossy loses two of three ICMP requests, and two of three HTTP requests, of each address.
type lossy struct{ *fake }

func (l lossy) Echo(ctx context.Context, to netip.Addr) (time.Duration, error) {
	l.count(to, func(c *counts) *int { return &c.echo })
	return reply(ctx, l.lost(to, func(c counts) int { return c.echo }))
}

func (l lossy) Hello(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	l.count(to.Addr(), func(c *counts) *int { return &c.hello })
	return reply(ctx, l.lost(to.Addr(), func(c counts) int { return c.hello }))
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
			if r.states()[tables.Unreachable] > 0 {
				t.Fatal("a node counts as unreachable")
			}
		}
		if got := r.states(); got[tables.Reachable] != 20 {
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
		for r.states()[tables.Unreachable] == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		net.mu.Lock()
		asked := net.asked[dead].echo - before.echo
		net.mu.Unlock()
		if asked != 3*DefaultConfig.Threshold {
			t.Errorf("unreachable after %d ICMP requests, want three probes of %d", asked, DefaultConfig.Threshold)
		}
		// The first probe comes within an interval, the others soon after; each waits for its timeout, and the loop has a step of a second.
		if took, most := time.Since(died), r.options.interval(100)+2*suspectInterval+3*(probeTimeout+2*calmStep); took > most {
			t.Errorf("unreachable after %v, want at most %v", took, most)
		}
		net.set(dead, wrong{})
		time.Sleep(r.options.base + 2*calmStep)
		if got := r.states(); got[tables.Reachable] != 100 {
			t.Errorf("a minute after it has returned: %v, want all reachable", got)
		}
	})
}

func TestProber_Request_ProbesAllNodes(t *testing.T) {
	t.Parallel()
	for _, number := range []int{300, 3000} {
		synctest.Test(t, func(t *testing.T) {
			net := newFake()
			net.set(addressOf(1), wrong{errSilence, nil}) // which is waited for, and meanwhile no other is probed again
			r := start(t, net, number)
			begin := time.Now()
			since, err := r.requests.wait(t.Context())
			if took := time.Since(begin); err != nil || since != begin || took >= requestLimit {
				t.Errorf("%d nodes: answered after %v (%v), want before %v", number, took, err, requestLimit)
			}
			if sum := net.total(); sum.hello != number {
				t.Errorf("%d HTTP requests, want one for each of %d nodes", sum.hello, number)
			}
			if s := r.api.status(r.db.ReadTxn(), since); len(s.NotProbed) != 0 || r.states()[tables.Reachable] != number {
				t.Errorf("%d of %d nodes were not probed: %v", len(s.NotProbed), number, r.states())
			}
		})
	}
}

// Requests end in time although no node answers, and do not delay each other. They say which nodes were not probed; what is said of those is older.
func TestProber_Request_IsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		const number = 2000
		r := start(t, net, number)
		time.Sleep(5 * time.Minute)
		for i := range number {
			net.set(addressOf(i), wrong{errSilence, errSilence})
		}
		leaves, leave := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				ctx := t.Context()
				if i == 0 {
					ctx = leaves
				}
				begin := time.Now()
				since, err := r.requests.wait(ctx)
				switch took := time.Since(begin); {
				case err != nil:
					t.Error(err)
				case i == 0:
				case took != 20*time.Second:
					t.Errorf("client %d was answered after %v, want 20 s", i, took)
				default:
					s := r.api.status(r.db.ReadTxn(), since)
					if probed := number - len(s.NotProbed); probed < 100 || probed > number*3/4 || !slices.IsSorted(s.NotProbed) {
						t.Errorf("client %d: %d nodes were probed", i, probed)
					}
				}
			})
		}
		time.Sleep(1500 * time.Millisecond)
		leave() // the first client gives up, which disturbs no other
		clients.Wait()
		if _, waiting := r.requests.latest(); waiting {
			t.Error("a request is left")
		}
	})
}

// A request begins with the nodes that were not probed for longest: two in a row probe more than one alone.
func TestProber_Request_GoesOnWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 2000
		net := newFake()
		for i := range number {
			net.set(addressOf(i), wrong{errSilence, errSilence})
		}
		r := start(t, net, number)
		first, err := r.requests.wait(t.Context())
		left := len(r.api.status(r.db.ReadTxn(), first).NotProbed)
		if _, err := r.requests.wait(t.Context()); err != nil {
			t.Error(err)
		}
		if still := len(r.api.status(r.db.ReadTxn(), first).NotProbed); err != nil || left < number/4 || still > left-number/4 {
			t.Errorf("%d nodes were not probed by the first request, %d by both: %v", left, still, err)
		}
	})
}

// The results of a visit that began before a node got another address do not keep the new address waiting.
func TestProber_NewAddressDuringAVisit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		net.set(addressOf(1), wrong{errSilence, errSilence})
		r := start(t, net, 2)
		for net.total().echo < 2 { // both are being asked
			time.Sleep(100 * time.Millisecond)
		}
		txn := r.db.WriteTxn(r.nodes)
		_, _, err := r.nodes.Insert(txn, &nodes.Node{Name: nameOf(1), Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addressOf(7)}}})
		txn.Commit()
		time.Sleep(probeTimeout + 5*calmStep)
		if got := r.states(); err != nil || got[tables.Reachable] != 2 {
			t.Errorf("the states are %v (%v), want both nodes reachable", got, err)
		}
	})
}

func TestRequests_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRequests()
		var clients sync.WaitGroup
		for range maxRequests {
			clients.Go(func() {
				if _, err := r.wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := r.wait(t.Context()); err == nil || !strings.Contains(err.Error(), "32 requests to probe all nodes are waiting already: try again later") {
			t.Errorf("one more: %v", err)
		}
		clients.Wait()
	})
}

// In a node that is well HTTP takes turns.
func TestPlan_HTTPTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		good := tables.Check{State: tables.Reachable}
		a := &tables.Path{Kind: tables.Host4, Addr: addressOf(1), ICMP: good, HTTP: good}
		b := &tables.Path{Kind: tables.Health4, Addr: addressOf(2), ICMP: good, HTTP: good}
		a.HTTP.Asked = time.Now()
		none := &tables.Path{Kind: tables.Host6, Unasked: "no address"}
		t0 := &target{paths: []*tables.Path{a, none, b}}
		lean := false
		web := func(all bool) []bool {
			v := plan(t0, all, lean)
			if !slices.Equal(v.paths, []*tables.Path{a, b}) {
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
		if lean, t0.spare = true, true; !slices.Equal(web(false), []bool{false, false}) {
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

func TestAfter(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ended := began.Add(time.Second)
	answered := outcome{began: began, ended: ended, latency: time.Millisecond}
	failed, local := answered, answered
	failed.err, local.err = syscall.ECONNREFUSED, fmt.Errorf("%w: %w", errImpeded, syscall.EMFILE)
	good := tables.Check{State: tables.Reachable, Latency: time.Millisecond, Answered: ended, Asked: began}
	fail := func(c tables.Check, state tables.State, strikes int, text string) tables.Check {
		c.State, c.Asked, c.Strikes, c.Error = state, began, strikes, text
		return c
	}
	const refused, tooMany = "connection refused", "not probed: too many open files"
	unknown := tables.Check{State: tables.Unknown}
	bad := fail(good, tables.Unreachable, 3, refused)
	for name, test := range map[string]struct {
		before tables.Check
		o      outcome
		want   tables.Check
	}{
		"left out":                  {good, outcome{}, good},
		"answered":                  {unknown, answered, good},
		"answered after failures":   {bad, answered, good},
		"failed, never answered":    {unknown, failed, fail(unknown, tables.Unknown, 1, refused)},
		"failed":                    {good, failed, fail(good, tables.Reachable, 1, refused)},
		"failed again":              {fail(good, tables.Reachable, 1, refused), failed, fail(good, tables.Reachable, 2, refused)},
		"failed for the third time": {fail(good, tables.Reachable, 2, refused), failed, bad},
		"failed once more":          {bad, failed, bad},
		"not sent":                  {good, local, fail(good, tables.Unknown, 0, tooMany)},
		"not sent, was unreachable": {bad, local, fail(good, tables.Unknown, 0, tooMany)},
	} {
		if got := after(test.before, test.o); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// Errors of this node say nothing about another one.
func TestLocal(t *testing.T) {
	t.Parallel()
	for number, want := range map[syscall.Errno]bool{
		syscall.EPERM: true, syscall.EMFILE: true, syscall.EADDRNOTAVAIL: true, syscall.EAFNOSUPPORT: true,
		syscall.ECONNREFUSED: false, syscall.EHOSTUNREACH: false, syscall.ENETUNREACH: false, syscall.ECONNRESET: false, syscall.ENOBUFS: false,
	} {
		err := local(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)})
		if got := errors.Is(err, errImpeded); got != want || !errors.Is(err, number) {
			t.Errorf("%v becomes %v", number, err)
		}
	}
	if err := local(context.DeadlineExceeded); errors.Is(err, errImpeded) {
		t.Errorf("a timeout becomes %v", err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"Connection timed out":           fmt.Errorf("dial: %w", context.DeadlineExceeded),
		"no route to host":               fmt.Errorf("dial tcp: %w", syscall.EHOSTUNREACH),
		`bad \x1b[31m`:                   errors.New("bad \x1b[31m"),
		strings.Repeat("x", 120) + "...": errors.New(strings.Repeat("x", 200)),
	} {
		if got := describe(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*Config){
		"--cluster-health-port=0":                    func(c *Config) { c.Port = 0 },
		"--health-check-icmp-failure-threshold=21":   func(c *Config) { c.Threshold = 21 },
		"--connectivity-probe-frequency-ratio=1.5":   func(c *Config) { c.Ratio = 1.5 },
		"--health-check-probe-rate=0: use 1 to 1000": func(c *Config) { c.Rate = 0 },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newOptions(c); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error of a bad %s: %v", flag, err)
		}
	}
	for _, test := range []struct {
		ratio float64
		nodes int
		want  time.Duration
	}{
		{0.5, 1, 42 * time.Second}, {0.5, 3, 83 * time.Second}, {0.5, 100, 277 * time.Second}, {0.5, 1000, 415 * time.Second}, {0.5, 5000, 600 * time.Second},
		{0, 3, 14 * time.Second}, {1, 3, 152 * time.Second}, {0, 5000, 600 * time.Second}, // fewer than ten nodes a second
	} {
		c := DefaultConfig
		c.Ratio = test.ratio
		o, err := newOptions(c)
		if got := o.interval(test.nodes); err != nil || got != test.want {
			t.Errorf("%d nodes with ratio %v: %v (%v), want %v", test.nodes, test.ratio, got, err, test.want)
		}
	}
}
