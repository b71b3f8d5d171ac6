package policymaps

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// policyRows computes the table policies from all policies and endpoints.
func (w *bench) policyRows(txn statedb.ReadTxn) map[string]policies.Policy {
	kept, unshown := w.overflow, maps.Clone(w.in.unshown)
	w.overflow = overflow{}
	w.beyondQuota()
	w.findOverflow()
	texts := w.overflow.texts
	w.overflow, w.in.unshown = kept, unshown
	rows := map[string]policies.Policy{}
	for o := range w.KubernetesPolicies.All(txn) {
		p := policy.FromKubernetes(o, w.in.env)
		if text := texts[p.Ref]; text != "" {
			p.Problems = append([]policy.Problem{{Path: "spec", Reason: policy.ReasonOverflow, Message: text}}, p.Problems...)
		}
		row := policies.Policy{Policy: p}
		for ep := range w.Endpoints.All(txn) {
			for _, part := range p.Parts {
				if part.Subject.Matches(ep.Labels) {
					row.Subjects++
					break
				}
			}
		}
		rows[p.Ref.String()] = row
	}
	return rows
}

// After any history the table policies equals the result that is computed from all policies and endpoints, and many rows keep their revision. Policies are
// added and deleted, endpoints that they select change, and policies are beyond quotas and in full maps.
func TestShowPolicies_AfterAnyHistory(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	w := newBench(t, 4, 0)
	w.cidrs.capacity, w.Config.NamespaceCIDRs = 20, 12
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	written := map[string]statedb.Revision{}
	var overflows, selected, unchanged int
	for n := range 1500 {
		w.store.capacity = capacity{[]int{3, 20, 1 << 20}[random.IntN(3)], 1 << 10}
		switch random.IntN(8) {
		case 0, 1, 2:
			p := addresses(fmt.Sprint("ns-", random.IntN(2)), fmt.Sprint("p-", random.IntN(6)), fmt.Sprint("app-", random.IntN(4)), byte(random.IntN(3)), random.IntN(12))
			if random.IntN(4) == 0 {
				p.PodSelector = k8s.Selector{}
			}
			put(t, w.DB, rules, p)
		case 3:
			remove(t, w.DB, rules, &k8s.NetworkPolicy{Namespace: fmt.Sprint("ns-", random.IntN(2)), Name: fmt.Sprint("p-", random.IntN(6))})
		default:
			w.someEndpoint(t, random)
		}
		w.problems = nil
		w.failingRound()
		for id := range uint16(7) {
			w.apply(t, id, reconciler.StatusDone())
		}
		txn := w.DB.ReadTxn()
		want := w.policyRows(txn)
		require.Equal(t, len(want), w.Policies.NumObjects(txn), "after change %d", n)
		before := written
		written = map[string]statedb.Revision{}
		for row, revision := range w.Policies.All(txn) {
			name := row.Ref.String()
			require.Equal(t, want[name], *row, "after change %d", n)
			written[name] = revision
			if before[name] == revision {
				unchanged++
			}
			if len(row.Problems) > 0 {
				overflows++
			}
			selected += row.Subjects
		}
	}
	require.Greater(t, overflows, 200)
	require.Greater(t, selected, 200)
	require.Greater(t, unchanged, 200)
}

// someEndpoint adds, changes or deletes one of six endpoints.
func (w *bench) someEndpoint(tb testing.TB, random *rand.Rand) {
	tb.Helper()
	id, app := uint16(1+random.IntN(6)), random.IntN(4)
	if random.IntN(4) == 0 {
		remove(tb, w.DB, w.endpoints, &endpoints.Endpoint{ID: id})
		remove(tb, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id})
		return
	}
	all := labelsOf(app, random.IntN(2))
	number := uint32(1000 + app)
	put(tb, w.DB, w.identities, &identities.Identity{ID: number, Labels: all})
	put(tb, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id, Attachment: fmt.Sprint(id, ":eth0"), Identity: number, Labels: all})
	put(tb, w.DB, w.endpoints, &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(id), IfName: "eth0", HostIfIndex: int(id), Labels: all})
}

// newLargeBench has 30 endpoints, each with one of the policies, remote identities that no rule selects, and one policy with address ranges.
func newLargeBench(tb testing.TB, policies, remote, ranges int) *bench {
	tb.Helper()
	w := newBench(tb, 30, policies/10)
	w.cidrs.capacity = 1 << 17
	for i := range remote {
		put(tb, w.DB, w.identities, remoteIdentity(i))
	}
	put(tb, w.DB, w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy]), addresses("ns-0", "ranges", "app-0", 1, ranges))
	w.step(tb)
	w.step(tb)
	return w
}

// newMixedBench is [newLargeBench] with CiliumNetworkPolicies as one half of the policies. The first 30 of them select an endpoint each.
func newMixedBench(tb testing.TB, policies, remote, ranges int) *bench {
	tb.Helper()
	w := newLargeBench(tb, policies/2, remote, ranges)
	for i := range policies / 2 {
		put(tb, w.DB, w.CiliumPolicies.(statedb.RWTable[*cilium.Policy]), rulesOf(fmt.Sprint("ns-", i%10), fmt.Sprint("c-", i), fmt.Sprint("app-", i),
			fmt.Sprintf(`"egress": [{"toEndpoints": [{"matchLabels": {"app": "app-%d"}}], "toPorts": [{"ports": [{"port": "%d", "protocol": "TCP"}]}]}]`, i+10, 1000+i)))
	}
	w.step(tb)
	w.step(tb)
	require.Equal(tb, policies+1, w.Policies.NumObjects(w.DB.ReadTxn()))
	require.Equal(tb, ranges, w.Named.NumObjects(w.DB.ReadTxn()))
	return w
}

func remoteIdentity(i int) *identities.Identity {
	return &identities.Identity{ID: uint32(2000 + i), Labels: labelsOf(i, 1000+i%100)}
}

// counts are the costs of rounds: the number of rows that they read and write, by table, and of pieces of work.
type counts map[string]int

// countedTable counts the rows that are read and written.
type countedTable[R any] struct {
	statedb.RWTable[R]
	counts counts
}

func (c countedTable[R]) count() { c.counts[c.Name()]++ }

func (c countedTable[R]) rows(all iter.Seq2[R, statedb.Revision]) iter.Seq2[R, statedb.Revision] {
	return func(yield func(R, statedb.Revision) bool) {
		for row, revision := range all {
			if c.count(); !yield(row, revision) {
				return
			}
		}
	}
}

func (c countedTable[R]) All(txn statedb.ReadTxn) iter.Seq2[R, statedb.Revision] {
	return c.rows(c.RWTable.All(txn))
}

func (c countedTable[R]) LowerBound(txn statedb.ReadTxn, q statedb.Query[R]) iter.Seq2[R, statedb.Revision] {
	return c.rows(c.RWTable.LowerBound(txn, q))
}

func (c countedTable[R]) Get(txn statedb.ReadTxn, q statedb.Query[R]) (R, statedb.Revision, bool) {
	c.count()
	return c.RWTable.Get(txn, q)
}

func (c countedTable[R]) Insert(txn statedb.WriteTxn, row R) (R, bool, error) {
	c.count()
	return c.RWTable.Insert(txn, row)
}

func (c countedTable[R]) Delete(txn statedb.WriteTxn, row R) (R, bool, error) {
	c.count()
	return c.RWTable.Delete(txn, row)
}

// counted makes the rounds of the controller count their costs from now on.
func (w *bench) counted() counts {
	all := counts{}
	for _, p := range []*params{&w.params, &w.in.params} {
		p.KubernetesPolicies = countedTable[*k8s.NetworkPolicy]{p.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy]), all}
		p.IPCache = countedTable[*ipcache.Entry]{p.IPCache.(statedb.RWTable[*ipcache.Entry]), all}
		p.Identities = countedTable[*identities.Identity]{w.identities, all}
		p.Endpoints = countedTable[*endpoints.Endpoint]{w.endpoints, all}
		p.Policies = countedTable[*policies.Policy]{p.Policies, all}
		p.Compiled = countedTable[*policyentries.Policy]{p.Compiled, all}
		p.Named = countedTable[*namedcidrs.CIDR]{p.Named, all}
		p.Published = countedTable[*endpointpolicies.EndpointPolicy]{p.Published, all}
		p.ClassTable = countedTable[*policyclasses.Class]{p.ClassTable, all}
	}
	alive := func() { all["pieces of work"]++ }
	w.alive, w.in.alive, w.store.alive = alive, alive, alive
	return all
}

// sizes are the sizes of two clusters. The second has ten times the policies, identities and address ranges of the first.
var sizes = []struct{ policies, identities, ranges int }{{300, 1000, 10}, {3000, 10000, 100}}

// An identity of pods of other nodes that no rule selects is created and deleted. No round reads a row of a policy, an endpoint or a range, and the costs do
// not depend on the size of the cluster.
func TestRemoteIdentity_CostIndependentOfClusterSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoteIdentity)
}

func testRemoteIdentity(t *testing.T) {
	for _, size := range sizes {
		w := newLargeBench(t, size.policies, size.identities, size.ranges)
		log := func() int { return len(w.Entries.(fakeEntries).log) }
		have, before := w.counted(), log()
		one := remoteIdentity(size.identities)
		put(t, w.DB, w.identities, one)
		w.round(t)
		require.True(t, w.announced[one.ID])
		require.True(t, w.known.has(one.ID))
		require.NotZero(t, w.classes.written[one.ID])
		remove(t, w.DB, w.identities, one)
		w.round(t)
		require.True(t, w.announced[one.ID], "for as long as it may be in use")
		require.True(t, w.in.known[one.ID])
		time.Sleep(identityGrace)
		w.round(t) // forgets the identity
		w.round(t) // removes the identity from the maps
		require.False(t, w.announced[one.ID])
		require.False(t, w.known.has(one.ID))
		require.Zero(t, w.classes.written[one.ID])
		require.Equal(t, counts{"pieces of work": 4}, have, "%+v: two changes, and two writes of classes", size)
		require.Equal(t, 4, log()-before, "%+v: of its classes and of its bit", size)
	}
}

// An endpoint is added and deleted. The rounds read and write the same number of rows in a large cluster. Of the policies, they read and write only the
// policy that selects the endpoint.
func TestLocalEndpoint_CostIndependentOfClusterSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLocalEndpoint)
}

func testLocalEndpoint(t *testing.T) {
	var all []counts
	for _, size := range sizes {
		w := newLargeBench(t, size.policies, size.identities, size.ranges)
		table, ref := w.params.Policies, policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-1", Name: "p-1"}
		subjects := func() int {
			row, _, found := table.Get(w.DB.ReadTxn(), policies.ByRef(ref.String()))
			require.True(t, found)
			return row.Subjects
		}
		have := w.counted()
		w.attach(t, 31, 1)
		require.Equal(t, 2, subjects())
		w.detach(t, 31)
		require.Equal(t, 1, subjects())
		require.Equal(t, 4, have["policies"], "%+v: the row of one policy is read and written at ADD and at DEL", size)
		require.Zero(t, have["named-cidrs"])
		require.Zero(t, have["k8s-networkpolicies"])
		all = append(all, have)
	}
	require.Equal(t, all[0], all[1])
}

// largeSizes are the numbers of policies, remote identities and named ranges of benchmarks.
var largeSizes = [][3]int{{300, 1000, 10}, {3000, 1000, 10}, {3000, 40000, 10}, {3000, 40000, 60000}}

func sizeName(size [3]int) string {
	return fmt.Sprintf("%d policies, %d identities, %d ranges", size[0], size[1], size[2])
}

// BenchmarkRemoteIdentity measures the rounds for an identity of other nodes that no rule selects: it is created and deleted. The CPU time of each of these
// events includes the collection of garbage.
func BenchmarkRemoteIdentity(b *testing.B) {
	const numbers = 20_000 // for new identities
	for _, size := range largeSizes {
		b.Run(sizeName(size), func(b *testing.B) {
			w := newMixedBench(b, size[0], size[1], size[2])
			before := cpuTime(b)
			for i := 0; b.Loop(); i++ {
				one := remoteIdentity(size[1] + i%numbers)
				put(b, w.DB, w.identities, one)
				w.round(b)
				remove(b, w.DB, w.identities, one)
				w.round(b)
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(2*b.N), "ns/event-cpu")
		})
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkLocalEndpoint measures the rounds for an ADD and a DEL of an endpoint with the labels of another one.
func BenchmarkLocalEndpoint(b *testing.B) {
	for _, size := range largeSizes {
		b.Run(sizeName(size), func(b *testing.B) {
			w := newMixedBench(b, size[0], size[1], size[2])
			for b.Loop() {
				w.attach(b, 31, 1)
				w.detach(b, 31)
			}
		})
	}
}

// attach runs the rounds of an ADD of an endpoint with the labels and the identity of another one.
func (w *bench) attach(tb testing.TB, id uint16, as int) {
	tb.Helper()
	put(tb, w.DB, w.endpoints, &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(id), IfName: "eth0", HostIfIndex: int(id), Labels: labelsOf(as, as%10)})
	w.round(tb)
	put(tb, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id, Attachment: fmt.Sprint(id, ":eth0"), Identity: uint32(256 + as)})
	w.round(tb)
	w.apply(tb, id, reconciler.StatusDone())
	w.round(tb)
}

// detach runs the rounds of a DEL.
func (w *bench) detach(tb testing.TB, id uint16) {
	tb.Helper()
	remove(tb, w.DB, w.endpoints, &endpoints.Endpoint{ID: id})
	remove(tb, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id})
	w.round(tb)
	w.apply(tb, id, reconciler.StatusDone())
	w.round(tb)
}
