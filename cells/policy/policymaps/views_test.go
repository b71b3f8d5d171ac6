package policymaps

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// round runs one round and returns its snapshot.
func (w *bench) round(tb testing.TB) statedb.ReadTxn {
	tb.Helper()
	txn := w.DB.ReadTxn()
	w.problems = nil
	w.in.read(txn, statedb.NewWatchSet(), time.Now())
	w.pass(txn, statedb.NewWatchSet())
	require.Empty(tb, w.problems)
	return txn
}

// apply makes the datapath apply the row of an endpoint with a status. It deletes the facts of an endpoint without a row.
func (w *bench) apply(tb testing.TB, id uint16, status reconciler.Status) {
	tb.Helper()
	row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
	if !found {
		remove(tb, w.DB, w.facts, &bpfendpoints.Facts{ID: id})
		return
	}
	ep, _, found := w.endpoints.Get(w.DB.ReadTxn(), endpoints.ByID(id))
	if !found {
		return
	}
	f := &bpfendpoints.Facts{ID: id, IfIndex: uint32(ep.HostIfIndex), Identity: row.Identity, Ingress: row.Ingress,
		Egress: row.Egress, PolicyRevision: row.Revision, Status: status}
	if old, _, found := w.facts.Get(w.DB.ReadTxn(), bpfendpoints.FactsByID(id)); !found || !old.Equal(f) || old.Status.Kind != status.Kind {
		put(tb, w.DB, w.facts, f)
	}
}

func remove[R any](tb testing.TB, db *statedb.DB, table statedb.RWTable[R], row R) {
	tb.Helper()
	txn := db.WriteTxn(table)
	defer txn.Commit()
	_, _, err := table.Delete(txn, row)
	require.NoError(tb, err)
}

// someChange changes a row of one of a few endpoints, identities or policies. It may use the id of an endpoint again before a round has noticed the deletion.
func (w *bench) someChange(tb testing.TB, random *rand.Rand) {
	tb.Helper()
	const ids, apps, rules = 6, 4, 3
	id := uint16(1 + random.IntN(ids))
	attachment := fmt.Sprint(int(id) + ids*random.IntN(2))
	app := random.IntN(apps)
	rule := &k8s.NetworkPolicy{Namespace: "ns-0", Name: fmt.Sprint("p-", random.IntN(rules)), IsIngress: true,
		PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", app)}},
		Ingress: []k8s.PolicyRule{{Peers: []k8s.Peer{{Pods: &k8s.Selector{}}},
			Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: fmt.Sprint(80 + random.IntN(2))}}}}}
	rulesTable := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	number := uint32(1000 + app + apps*random.IntN(1000)) // most identities are new to the node
	far := &identities.Identity{ID: uint32(9000 + random.IntN(20)), Labels: labelsOf(100, 50)}
	ranges := addresses("ns-0", "ranges", fmt.Sprint("app-", app), byte(random.IntN(2)), random.IntN(5))
	switch random.IntN(15) {
	case 0, 1, 2:
		ep := &endpoints.Endpoint{ID: id, ContainerID: attachment, IfName: "eth0", HostIfIndex: int(id) + 100*random.IntN(2), Labels: labelsOf(app, 0)}
		if random.IntN(5) == 0 {
			ep.LabelsMissing = "those of its namespace"
		}
		put(tb, w.DB, w.endpoints, ep)
	case 3:
		remove(tb, w.DB, w.endpoints, &endpoints.Endpoint{ID: id})
	case 4, 5:
		put(tb, w.DB, w.identities, &identities.Identity{ID: number, Labels: labelsOf(app, 0)})
		put(tb, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id, Attachment: attachment + ":eth0", Identity: number, Labels: labelsOf(app, 0)})
	case 6:
		remove(tb, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id})
	case 7:
		w.apply(tb, id, []reconciler.Status{reconciler.StatusDone(), reconciler.StatusPending()}[random.IntN(2)])
	case 8:
		put(tb, w.DB, rulesTable, rule)
	case 9:
		remove(tb, w.DB, rulesTable, rule)
	case 10, 11:
		put(tb, w.DB, w.identities, far)
	case 12:
		remove(tb, w.DB, w.identities, far)
	case 13:
		put(tb, w.DB, rulesTable, ranges)
	case 14: // the verify job has found differences
		txn := w.DB.WriteTxn(w.Named, w.Compiled)
		defer txn.Commit()
		if row, _, found := w.Named.Get(txn, namedcidrs.ByPrefix(netip.MustParsePrefix("50.1.0.0/32"))); found {
			_, _, _ = w.Named.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending()))
		}
		for _, row := range statedb.Collect(w.Compiled.All(txn)) {
			_, _, _ = w.Compiled.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending()))
		}
	}
}

// viewsFromScratch evaluates all endpoints at a snapshot.
func (w *bench) viewsFromScratch(txn statedb.ReadTxn) *views {
	all := newViews()
	for id := range w.in.subjects {
		all.put(id, w.view(txn, id))
	}
	for row := range w.Published.All(txn) {
		all.put(row.EndpointID, w.view(txn, row.EndpointID))
	}
	return all
}

// result describes the state of the endpoints, with the entries of a policy in place of its id.
func (w *bench) result(txn statedb.ReadTxn) string {
	var out strings.Builder
	policy := func(d endpointpolicies.Decision) string {
		h := w.store.byID[d.Enforced.ID]
		switch {
		case d.Enforced.ID <= 1:
			return fmt.Sprint("id ", d.Enforced.ID)
		case h == nil:
			return "an id that is free" // id of a previous endpoint with the local id; the current one has no identity yet
		}
		var entries []string
		for e := range h.is.Entries() {
			entries = append(entries, fmt.Sprint(e.Key, e.Deny))
		}
		return fmt.Sprint(entries)
	}
	for row := range w.Published.All(txn) {
		fmt.Fprintln(&out, row.EndpointID, row.Attachment, "identity", row.Identity, "error", row.Error, "ingress", policy(row.Ingress), row.Ingress.Isolated,
			"egress", policy(row.Egress), row.Egress.Isolated)
	}
	fmt.Fprintln(&out, "announced", slices.Sorted(maps.Keys(w.announced)), "policies", len(w.store.byID))
	for row := range w.Named.All(txn) {
		fmt.Fprintln(&out, row.Prefix, row.Identity, row.Retired, row.Status.Kind)
	}
	for row := range w.Policies.All(txn) {
		fmt.Fprintln(&out, row.Ref, row.Subjects, row.Problems)
	}
	var users []string
	for row := range w.Compiled.All(txn) {
		users = append(users, fmt.Sprint(row.Policies, row.Entries, row.Ranges, row.Users, row.Status.Kind))
	}
	progress, _, _ := w.Progress.Get(txn, policyprogress.Row)
	fake := w.Entries.(fakeEntries).fakeMaps
	fmt.Fprintln(&out, slices.Sorted(slices.Values(users)), progress.Identities, len(fake.entries), fake.cidrs, fake.classes, fake.known, w.ClassTable.NumObjects(txn))
	return out.String()
}

// TestRound_ChangedEndpoints_MatchesFullRound compares rounds that evaluate changed endpoints with rounds of a second controller that evaluate everything: the
// views and their sums after each round, and all tables and maps. Some rounds end with rows that the datapath has not applied.
func TestRound_ChangedEndpoints_MatchesFullRound(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	synctest.Test(t, func(t *testing.T) { compareRounds(t, random) })
}

func compareRounds(t *testing.T, random *rand.Rand) {
	t.Helper()
	one, whole := newBench(t, 0, 0), newBench(t, 0, 0)
	partial, idle := 0, 0
	for n := range 600 {
		seed := random.Uint64()
		changes := 1 + random.IntN(3)
		settle := random.IntN(3) > 0
		time.Sleep(time.Duration(random.IntN(3)) * time.Second) // deleted identities are forgotten
		for _, w := range []*bench{one, whole} {
			same := rand.New(rand.NewPCG(seed, 0))
			for range changes {
				w.someChange(t, same)
			}
			rounds := 1
			if settle {
				rounds = 4
			}
			for range rounds {
				if w == whole {
					w.evaluateAll()
					w.last.steady, w.marks.policiesTo, w.marks.rangesTo = false, 0, 0
				}
				before, settled := w.views, w.last.settled
				txn := w.round(t)
				if w == one {
					if w.views == before {
						partial++
					}
					if settled && w.last.settled {
						idle++
					}
					require.Equal(t, w.viewsFromScratch(txn), w.views, "after change %d", n)
				}
				if settle {
					for id := range uint16(7) {
						w.apply(t, id, reconciler.StatusDone())
					}
				}
			}
		}
		require.Equal(t, whole.result(whole.DB.ReadTxn()), one.result(one.DB.ReadTxn()), "after change %d", n)
	}
	require.Greater(t, partial, 200, "rounds that looked at changed endpoints")
	require.Greater(t, idle, 200, "rounds that looked at none")
}

// TestViews_SumsMatchViews: the sums depend only on the current views, not on the order of changes or on replaced views.
func TestViews_SumsMatchViews(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	list := []*policycompiler.Compiled{nil, {}, {}, {}}
	s, now := newViews(), map[uint16]view{}
	for range 2000 {
		id, v := uint16(random.IntN(6)), view{}
		if random.IntN(4) > 0 {
			v.exists = true
			for i := range v.of {
				v.of[i] = list[random.IntN(len(list))]
			}
			switch random.IntN(3) {
			case 0:
				v.row, v.own = &endpointpolicies.EndpointPolicy{Identity: uint32(random.IntN(3))}, random.IntN(2) == 0
				v.row.Ingress.Enforced.ID, v.row.Egress.Enforced.ID = uint32(random.IntN(4)), uint32(random.IntN(4))
				v.untaken = v.own && random.IntN(2) == 0
			case 1:
				v.restored, v.ids, v.unchanged = true, [4]uint32{2, 0, 3, 1}, random.IntN(2) == 0
			}
		}
		s.put(id, v)
		if now[id] = v; v == (view{}) {
			delete(now, id)
		}
		want := newViews()
		for id, v := range now {
			want.put(id, v)
		}
		require.Equal(t, want, s)
	}
}

// TestAssign_PolicyReusedInRound_GetsID: the endpoints of an id change to another policy, to which the id could be changed in place, in the round in
// which a new endpoint gets their previous policy.
func TestAssign_PolicyReusedInRound_GetsID(t *testing.T) {
	t.Parallel()
	for range 50 { // the order of the policies is random
		before, next := &policycompiler.Compiled{}, &policycompiler.Compiled{}
		s := newStore(nil)
		s.alive = func() {}
		s.byID[7] = &mapPolicy{id: 7, is: before}
		s.assign(maps.Keys(map[*policycompiler.Compiled]int{before: 1, next: 1}), map[uint32]successors{7: {next: 1}})
		require.NotNil(t, s.by[before])
		require.NotNil(t, s.by[next])
		require.NotEqual(t, s.by[before].id, s.by[next].id)
	}
}

// TestRound_WithoutEndpoints_RemovesPendingIDs: a policy id that could not be removed in the round in which its endpoint was deleted, because a program of the
// previous run might have it, is removed when no such program is left, although no endpoint changes then.
func TestRound_WithoutEndpoints_RemovesPendingIDs(t *testing.T) {
	t.Parallel()
	w := newBench(t, 4, 1)
	ids := len(w.store.byID)
	table := w.Attachments.(statedb.RWTable[*attachments.Attachment])
	programs := slices.Collect(statedb.ToSeq(table.All(w.DB.ReadTxn())))
	for _, a := range programs {
		remove(t, w.DB, table, a)
	}
	w.alone = false
	w.detach(t, 4)
	w.round(t)
	require.Len(t, w.store.byID, ids)
	put(t, w.DB, table, programs...)
	w.round(t)
	require.Len(t, w.store.byID, ids-1)
}

// BenchmarkRounds measures the rounds of an ADD and a DEL of an endpoint with the labels of another one, by the number of policies and of other endpoints.
func BenchmarkRounds(b *testing.B) {
	for _, policies := range []int{0, 5} {
		for _, n := range []int{10, 200, 1000} {
			b.Run(fmt.Sprintf("%d policies/%d", 10*policies, n), func(b *testing.B) {
				w := newBench(b, n, policies)
				w.round(b)
				id, attachment := uint16(n+1), fmt.Sprint(n, ":eth0")
				for b.Loop() {
					put(b, w.DB, w.endpoints, &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(n), IfName: "eth0", HostIfIndex: n + 1, Labels: labelsOf(0, 0)})
					w.round(b)
					put(b, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id, Attachment: attachment, Identity: 256})
					w.round(b)
					w.apply(b, id, reconciler.StatusDone())
					w.round(b)
					remove(b, w.DB, w.endpoints, &endpoints.Endpoint{ID: id})
					remove(b, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id})
					w.round(b)
					w.apply(b, id, reconciler.StatusDone())
					w.round(b)
				}
			})
		}
	}
}
