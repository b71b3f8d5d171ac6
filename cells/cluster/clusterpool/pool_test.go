package clusterpool

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/cidrpool"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/tables/podcidrpool"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ciliumNode(name string, cidrs ...string) *ciliumv2.CiliumNode {
	return &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: ciliumv2.NodeSpec{BootID: "kept", IPAM: ciliumv2.NodeIPAM{PodCIDRs: cidrs}}}
}

func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(ciliumNode("a"), ciliumNode("b", "10.0.0.0/24"), ciliumNode("c", "10.0.0.0/25"), ciliumNode("d", "192.0.2.0/24"),
			ciliumNode("e", "nonsense"), ciliumNode("f", "fd00::/120"))
		client := server.Client(t)
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return client },
			leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable)}
	})
}

func TestPlan_AvoidsNodeAddresses(t *testing.T) {
	set, err := newSettings(Config{EnableIPv4: true, IPAM: "cluster-pool", IPv4CIDR: []string{"10.0.0.0/8"}, IPv4Size: 24})
	if err != nil {
		t.Fatal(err)
	}
	a, b := ciliumNode("a"), ciliumNode("b")
	a.Spec.Addresses = []ciliumv2.NodeAddress{{Type: "InternalIP", IP: "10.0.0.4"}, {Type: "ExternalIP", IP: "::ffff:10.0.2.1"},
		{Type: "InternalIP", IP: "fd00::1"}, {Type: "InternalIP", IP: "nonsense"}, {Type: ciliumv2.CiliumInternalIP, IP: "10.0.3.1"}}
	_, give := plan(set.families, []ciliumv2.CiliumNode{*b, *a})
	got := fmt.Sprint(give[0].cidrs, give[1].cidrs)
	if want := "[10.0.1.0/24] [10.0.3.0/24]"; got != want {
		t.Errorf("gave %s, want %s", got, want)
	}
}

// An agent lists an address in each subnet of the pool. Other nodes still get CIDRs.
func TestPlan_NodeWithManyAddresses_DoesNotTakeThePool(t *testing.T) {
	t.Parallel()
	set, err := newSettings(Config{EnableIPv4: true, IPAM: "cluster-pool", IPv4CIDR: []string{"10.0.0.0/16"}, IPv4Size: 24})
	if err != nil {
		t.Fatal(err)
	}
	greedy := ciliumNode("a", "10.0.0.0/24")
	for i := range 256 {
		greedy.Spec.Addresses = append(greedy.Spec.Addresses, ciliumv2.NodeAddress{Type: "InternalIP", IP: fmt.Sprintf("10.0.%d.1", i)})
	}
	rows, give := plan(set.families, []ciliumv2.CiliumNode{*greedy, *ciliumNode("b")})
	if want := fmt.Sprintf("[10.0.%d.0/24]", maxAddresses); len(give) != 1 || fmt.Sprint(give[0].cidrs) != want {
		t.Errorf("rows %+v, gave %+v, want %s", rows, give, want)
	}
}

func TestPlan_NodeListsShortPrefix_DoesNotTakeThePool(t *testing.T) {
	t.Parallel()
	set, err := newSettings(Config{EnableIPv4: true, IPAM: "cluster-pool", IPv4CIDR: []string{"10.0.0.0/16"}, IPv4Size: 24})
	if err != nil {
		t.Fatal(err)
	}
	greedy := ciliumNode("a", "10.0.0.0/24")
	greedy.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: "10.0.0.0/8,10.0.16.0/20,10.0.0.0/20,10.0.1.0/24"}
	rows, give := plan(set.families, []ciliumv2.CiliumNode{*greedy, *ciliumNode("b")})
	if len(give) != 1 || fmt.Sprint(give[0].cidrs) != "[10.0.1.0/24]" { // 10.0.16.0/20 has 16 subnets, the most for one node
		t.Errorf("rows %+v, gave %+v, want 10.0.1.0/24", rows, give)
	}
}

// A node whose CIDR has changed has pods in the former one. No other node gets the former CIDR.
func TestPlan_AvoidsPreviousRanges(t *testing.T) {
	t.Parallel()
	set, err := newSettings(Config{EnableIPv4: true, EnableIPv6: true, IPAM: "cluster-pool", IPv4CIDR: []string{"10.0.0.0/8"}, IPv4Size: 24,
		IPv6CIDR: []string{"fd00::/104"}, IPv6Size: 120})
	if err != nil {
		t.Fatal(err)
	}
	a := ciliumNode("a", "10.0.1.0/24", "fd00::100/120")
	a.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: "10.0.0.0/24,fd00::/120,10.0.1.0/24,nonsense"}
	_, give := plan(set.families, []ciliumv2.CiliumNode{*a, *ciliumNode("b")})
	if want := "[10.0.2.0/24 fd00::200/120]"; len(give) != 1 || fmt.Sprint(give[0].cidrs) != want {
		t.Errorf("gave %+v, want %s", give, want)
	}
}

// An agent lists each CIDR that its node gets, and removes it from the CiliumNode.
func TestPlan_NodeWithTooManyCIDRs_GetsNoMore(t *testing.T) {
	t.Parallel()
	set, err := newSettings(Config{EnableIPv4: true, IPAM: "cluster-pool", IPv4CIDR: []string{"10.0.0.0/8"}, IPv4Size: 24})
	if err != nil {
		t.Fatal(err)
	}
	greedy, given := *ciliumNode("a"), []string(nil)
	for range 2 * maxNoted {
		rows, give := plan(set.families, []ciliumv2.CiliumNode{greedy, *ciliumNode("b")})
		if len(given) == maxNoted {
			if len(rows) == 0 || rows[0].State != podcidrpool.Invalid || len(give) != 1 || give[0].node.Name != "b" {
				t.Fatalf("rows %+v, gave %+v", rows, give)
			}
			return
		}
		given = append(given, give[0].cidrs...)
		greedy.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: strings.Join(given, ",")}
	}
	t.Errorf("got %v", given)
}

// replica is an allocator whose leadership depends on its row in the table leadership.
type replica struct {
	*allocator
	leadership statedb.RWTable[leadership.Leadership]
}

func newReplica(t *testing.T, client *kubeapi.Client, c Config) *replica {
	t.Helper()
	set, err := newSettings(c)
	if err != nil {
		t.Fatal(err)
	}
	db := statedb.New()
	rows, err := podcidrpool.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	table, err := leadership.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	return &replica{newAllocator(params{Log: slog.New(slog.DiscardHandler), DB: db, Table: rows, Leadership: table, Settings: set,
		Client: client}), table}
}

func (r *replica) lead(t *testing.T, leads bool) {
	t.Helper()
	row := leadership.Leadership{Lease: "x"}
	if leads {
		row.Until = time.Now().Add(time.Hour)
	}
	txn := r.DB.WriteTxn(r.leadership)
	defer txn.Abort()
	if _, _, err := r.leadership.Insert(txn, row); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
}

// start runs the allocator's job until the test ends.
func (r *replica) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	_, health := cell.NewSimpleHealth()
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = r.run(ctx, health) // the job is retried
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// check ends the test if CIDRs of two nodes overlap, and returns the number of nodes with one CIDR of each of n families.
func check(t *testing.T, s *kubetest.Server, n int) (complete int) {
	t.Helper()
	var all []netip.Prefix
	var names []string
	for _, o := range s.List(kubeapi.CiliumNodes) {
		node := o.(*ciliumv2.CiliumNode)
		for _, text := range node.Spec.IPAM.PodCIDRs {
			all, names = append(all, netip.MustParsePrefix(text)), append(names, node.Name)
		}
		if len(node.Spec.IPAM.PodCIDRs) == n {
			complete++
		}
		if node.Spec.BootID != "kept" {
			t.Fatalf("another field of %s was changed", node.Name)
		}
	}
	for i, with := range cidrpool.Overlaps(all) {
		t.Fatalf("%s of %s overlaps %s of %s", all[i], names[i], all[with], names[with])
	}
	return complete
}

func TestAllocator_AssignsAndReleases(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	c := DefaultConfig
	c.IPv4CIDR, c.EnableIPv6 = []string{"10.1.0.0/23"}, false
	r := newReplica(t, s.Client(t), c)
	r.start(t)
	s.Put(ciliumNode("a"), ciliumNode("b"), ciliumNode("c"))
	has := func(name, cidr string) func() bool {
		return func() bool {
			var n ciliumv2.CiliumNode
			return s.Get(kubeapi.CiliumNodes, "", name, &n) && strings.Join(n.Spec.IPAM.PodCIDRs, ",") == cidr
		}
	}
	r.lead(t, true)
	s.Await(t, "a and b have CIDRs", func() bool { return has("a", "10.1.0.0/24")() && has("b", "10.1.1.0/24")() })
	if !has("c", "")() {
		t.Error("c was given a CIDR that does not exist")
	}
	s.Remove(kubeapi.CiliumNodes, "", "a")
	s.Await(t, "c has the CIDR of a", has("c", "10.1.0.0/24"))

	// Without leadership the replica writes nothing, even when a node changes.
	r.lead(t, false)
	s.Remove(kubeapi.CiliumNodes, "", "b")
	s.Put(ciliumNode("d"))
	if _, err := r.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !has("d", "")() {
		t.Error("a replica that does not lead has written")
	}
	r.lead(t, true)
	s.Await(t, "d has the CIDR of b", has("d", "10.1.1.0/24"))
}

// TestAllocator_KeepsConcurrentNodeWrites: the allocator assigns the CIDR although the node changes its object all the time.
func TestAllocator_KeepsConcurrentNodeWrites(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(ciliumNode("a"))
	r := newReplica(t, s.Client(t), DefaultConfig)
	r.lead(t, true)
	patches := 0
	s.Fault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodPatch {
			if patches++; patches < attempts {
				n := ciliumNode("a")
				n.Spec.Addresses = []ciliumv2.NodeAddress{{Type: "InternalIP", IP: fmt.Sprintf("192.0.2.%d", patches)}}
				s.Put(n)
			}
		}
		return 0, ""
	})
	if got, err := r.round(t.Context()); err != nil || got.failed {
		t.Fatalf("%+v, %v", got.rows, err)
	}
	var n ciliumv2.CiliumNode
	s.Get(kubeapi.CiliumNodes, "", "a", &n)
	if len(n.Spec.IPAM.PodCIDRs) != 2 || len(n.Spec.Addresses) != 1 {
		t.Errorf("the node is %+v", n.Spec)
	}
}

// TestAllocator_RandomChurn: leadership moves between two replicas while nodes are added and removed and requests fail. No two nodes ever
// have the same CIDR, and in the end each node has one.
func TestAllocator_RandomChurn(t *testing.T) {
	t.Parallel()
	seed := testseed.Seed(t)
	random := rand.New(rand.NewPCG(seed, 1))
	s := kubetest.New(t)
	c := DefaultConfig
	c.IPv4CIDR, c.IPv4Size = []string{"10.0.0.0/24", "10.9.0.0/24"}, 28
	two := []*replica{newReplica(t, s.Client(t), c), newReplica(t, s.Client(t), c)}
	faults := rand.New(rand.NewPCG(seed, 2))
	locked := make(chan struct{}, 1)
	s.Fault(func(q *http.Request) (int, string) {
		locked <- struct{}{}
		defer func() { <-locked }()
		if q.Method != http.MethodGet && faults.IntN(4) == 0 {
			return http.StatusInternalServerError, ""
		}
		return 0, ""
	})
	two[0].lead(t, true)
	for i := range 300 {
		name := fmt.Sprintf("n%d", random.IntN(30))
		if !s.Remove(kubeapi.CiliumNodes, "", name) {
			s.Put(ciliumNode(name))
		}
		leader := i / 20 % 2
		stale, _, err := two[1-leader].list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, late := plan(two[1-leader].Settings.families, stale)
		two[1-leader].lead(t, false)
		two[leader].lead(t, true)
		if _, err := two[leader].round(t.Context()); err != nil {
			t.Fatal(err)
		}
		two[1-leader].write(t.Context(), late) // the former leader still writes from its old snapshot
		check(t, s, 2)
	}
	s.Fault(nil)
	for _, r := range two {
		r.lead(t, true)
		if _, err := r.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := check(t, s, 2), len(s.List(kubeapi.CiliumNodes)); got != want {
		t.Errorf("%d of %d nodes have their CIDRs", got, want)
	}
}

func TestNewSettings_Rejects(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"--cluster-pool-ipv4-cidr with --cluster-pool-ipv4-mask-size=24: \"fd00::/8\"": func(c *Config) { c.IPv4CIDR = []string{"fd00::/8"} },
		"--cluster-pool-ipv6-cidr with --cluster-pool-ipv6-mask-size=64":               func(c *Config) { c.IPv6Size = 64 },
		"--ipam=\"crd\"":       func(c *Config) { c.IPAM = "crd" },
		"both false":           func(c *Config) { c.EnableIPv4, c.EnableIPv6 = false, false },
		"--cluster-pool-ipv4-": func(c *Config) { c.IPv4CIDR = []string{"10.0.0.0"} },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newSettings(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	set, err := newSettings(DefaultConfig)
	if err != nil {
		b.Fatal(err)
	}
	var nodes []ciliumv2.CiliumNode
	for i := range 5000 {
		nodes = append(nodes, *ciliumNode(fmt.Sprintf("node-%d", i)))
	}
	for b.Loop() {
		if _, give := plan(set.families, nodes); len(give) != 5000 {
			b.Fatal(len(give))
		}
	}
}

// Each round checks a pool that stays exhausted again.
func TestReport_LogsAFaultOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	a := &allocator{params: params{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	_, health := cell.NewSimpleHealth()
	full := result{rows: []podcidrpool.CIDR{{Node: "a", Family: "ipv4", State: podcidrpool.Exhausted, Reason: "full"}}}
	for i, r := range []result{full, full, {}, full} {
		a.report(health, r)
		if got, want := strings.Count(log.String(), "full"), []int{1, 1, 1, 2}[i]; got != want {
			t.Errorf("after round %d it was logged %d times, want %d", i+1, got, want)
		}
	}
}
