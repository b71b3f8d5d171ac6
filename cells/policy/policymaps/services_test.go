package policymaps

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// toService returns a policy that allows the pods of a namespace with a label egress to the Service "db" of the namespace. The description has n bytes.
func toService(namespace, name, app string, n int) *cilium.Policy {
	return &cilium.Policy{Namespace: namespace, Name: name, Spec: json.RawMessage(`{"description": "` + strings.Repeat("x", n) +
		`", "endpointSelector": {"matchLabels": {"app": "` + app + `"}}, "egress": [{"toServices": [{"k8sService": {"serviceName": "db"}}]}]}`)}
}

func service(namespace, name, selects string) *k8s.Service {
	return &k8s.Service{Namespace: namespace, Name: name, Type: "ClusterIP", Selects: selects}
}

func (w *bench) serviceRows() statedb.RWTable[*k8s.Service] {
	return w.Services.(statedb.RWTable[*k8s.Service])
}

func (w *bench) ciliumRules() statedb.RWTable[*cilium.Policy] {
	return w.CiliumPolicies.(statedb.RWTable[*cilium.Policy])
}

// once runs one round, and returns the delay of the next one.
func (w *bench) once(t *testing.T) time.Duration {
	t.Helper()
	txn := w.DB.ReadTxn()
	w.problems = nil
	w.in.read(txn, statedb.NewWatchSet(), time.Now())
	again := w.pass(txn, statedb.NewWatchSet())
	require.Empty(t, w.problems)
	return again
}

// TestServices_WithoutEffect_CauseNoRound: only another meaning of a Service to which a policy refers causes a round. Nothing is kept of other Services.
func TestServices_WithoutEffect_CauseNoRound(t *testing.T) {
	t.Parallel()
	w := newBench(t, 2, 0)
	p := toService("ns-0", "to-db", "app-0", 0)
	ref := policy.Ref{Kind: policy.Cilium, Namespace: "ns-0", Name: "to-db"}
	put(t, w.DB, w.serviceRows(), service("ns-0", "db", "app=app-1"))
	put(t, w.DB, w.ciliumRules(), p)
	w.step(t)
	parsed, changed := w.in.policies[ref], statedb.NewWatchSet()
	require.Empty(t, parsed.Problems, "the Service existed before the policy")
	w.in.read(w.DB.ReadTxn(), changed, time.Now())
	passedOver := func() bool {
		closed, err := changed.Wait(t.Context(), 0)
		require.NoError(t, err)
		return w.in.passOver(closed[0], changed)
	}

	for i := range 100 {
		put(t, w.DB, w.serviceRows(), service("ns-0", fmt.Sprint("other-", i), "app=app-1"))
		require.True(t, passedOver(), "another Service")
	}
	same := service("ns-0", "db", "app=app-1")
	same.Ports = []k8s.ServicePort{{Protocol: "TCP", Port: 80}}
	put(t, w.DB, w.serviceRows(), same)
	require.True(t, passedOver(), "another port")
	w.once(t)
	require.Same(t, parsed, w.in.policies[ref], "the policy was parsed again")
	require.Len(t, w.in.services.referred, 1)

	changed = statedb.NewWatchSet()
	w.in.read(w.DB.ReadTxn(), changed, time.Now())
	put(t, w.DB, w.serviceRows(), service("ns-0", "db", "app=app-0"))
	require.False(t, passedOver(), "another selector")
	w.once(t)
	require.NotSame(t, parsed, w.in.policies[ref])

	remove(t, w.DB, w.ciliumRules(), p)
	w.once(t)
	require.Empty(t, w.in.services.referred)
}

// TestServices_Portions: 1,000 policies refer to a Service of one tenant that changes all the time. Each round parses a portion of them again. A Service, a policy
// and an endpoint of other namespaces wait for one round at most.
func TestServices_Portions(t *testing.T) {
	t.Parallel()
	const policies, size = 1000, 1 << 10
	w := newBench(t, 2, 0)
	put(t, w.DB, w.serviceRows(), service("hostile", "db", "app=x"), service("ns-1", "db", "app=x"))
	put(t, w.DB, w.ciliumRules(), toService("ns-1", "quiet", "app-1", 0))
	for i := range policies {
		put(t, w.DB, w.ciliumRules(), toService("hostile", fmt.Sprint("p-", i), "none", size))
	}
	w.step(t)
	require.Zero(t, w.in.services.queue.Len())
	require.True(t, w.in.services.paced)
	quiet := policy.Ref{Kind: policy.Cilium, Namespace: "ns-1", Name: "quiet"}

	put(t, w.DB, w.serviceRows(), service("hostile", "db", "app=y"))
	require.NotZero(t, w.once(t), "another round is due")
	left := w.in.services.queue.Len()
	require.Less(t, left, policies)
	require.LessOrEqual(t, (policies-left)*size, servicePortion)

	put(t, w.DB, w.serviceRows(), service("hostile", "db", "app=z"), service("ns-1", "db", "app=y"))
	put(t, w.DB, w.ciliumRules(), toService("ns-2", "new", "app-2", 0))
	w.add(t, 2)
	before := w.in.policies[quiet]
	w.once(t)
	require.NotSame(t, before, w.in.policies[quiet], "the policy of the quiet namespace was parsed again with its Service")
	require.Greater(t, w.in.services.queue.Len(), policies/2)
	row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(3))
	require.True(t, found && row.Error == "", "the endpoint has its policy: %+v", row)
	require.NotEqual(t, uint32(1), row.Egress.Enforced.ID, "the new policy isolates it")

	rounds := 0
	for w.in.services.queue.Len() > 0 {
		w.once(t)
		rounds++
	}
	require.LessOrEqual(t, rounds, policies*2*size/servicePortion)
	for ref, p := range w.in.policies {
		if ref.Namespace == "hostile" {
			require.Contains(t, p.Parts[0].Rules[0].Peers.List[0].Labels.String(), "app=z", ref.Name)
		}
	}

	w.in.services.paced = false
	put(t, w.DB, w.serviceRows(), service("hostile", "db", "app=x"))
	w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
	require.Zero(t, w.in.services.queue.Len(), "at the start, the whole queue is one portion")
}

// TestServices_DeletedOrChangedPolicy_LeavesTheQueue: the new version of a changed policy is parsed once.
func TestServices_DeletedOrChangedPolicy_LeavesTheQueue(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 0)
	put(t, w.DB, w.serviceRows(), service("a", "db", "app=x"))
	for _, name := range []string{"p-0", "p-1", "p-2"} {
		put(t, w.DB, w.ciliumRules(), toService("a", name, "none", servicePortion))
	}
	w.step(t)
	put(t, w.DB, w.serviceRows(), service("a", "db", "app=y"))
	w.once(t)
	require.Equal(t, 2, w.in.services.queue.Len(), "a policy that is larger than a portion is parsed alone")
	remove(t, w.DB, w.ciliumRules(), toService("a", "p-1", "", 0))
	put(t, w.DB, w.ciliumRules(), toService("a", "p-2", "other", servicePortion))
	w.once(t)
	require.Zero(t, w.in.services.queue.Len(), "the changed policy was parsed once")
	require.Len(t, w.in.services.referred[policy.ServiceName{Namespace: "a", Name: "db"}].by, 2)
	require.Contains(t, w.in.policies[policy.Ref{Kind: policy.Cilium, Namespace: "a", Name: "p-2"}].Parts[0].Rules[0].Peers.List[0].Labels.String(), "app=y")
}

// TestServices_Unread_FailClosedInOneRound: when Services cannot be read, all policies that refer to one fail closed in one round. When Services can be read again,
// one round parses all of these policies.
func TestServices_Unread_FailClosedInOneRound(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 0)
	rows := w.params.Sources.(statedb.RWTable[sources.Source])
	put(t, w.DB, w.serviceRows(), service("a", "db", "app=x"))
	for i := range 4 {
		put(t, w.DB, w.ciliumRules(), toService("a", fmt.Sprint("p-", i), "none", servicePortion))
	}
	w.step(t)
	for _, c := range []struct {
		state    sources.State
		problems int
	}{{sources.Waiting, 1}, {sources.Synced, 0}} {
		put(t, w.DB, rows, sources.Source{Table: w.Services.Name(), State: c.state})
		w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
		for ref, p := range w.in.policies {
			require.Len(t, p.Problems, c.problems, "%s: %s", c.state, ref)
		}
	}
}

// TestServices_SelectorsCountInPortions: a policy with many references to a Service with a long selector fills a portion.
func TestServices_SelectorsCountInPortions(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 0)
	long := "app=" + strings.Repeat("x", servicePortion/400)
	put(t, w.DB, w.serviceRows(), service("a", "db", long+"1"))
	for _, name := range []string{"p-0", "p-1", "p-2"} {
		p := toService("a", name, "none", 0)
		p.Spec = json.RawMessage(strings.Replace(string(p.Spec), `"toServices": [`, `"toServices": [`+strings.Repeat(`{"k8sService": {"serviceName": "db"}}, `, 400), 1))
		put(t, w.DB, w.ciliumRules(), p)
	}
	w.step(t)
	put(t, w.DB, w.serviceRows(), service("a", "db", long+"2"))
	w.once(t)
	require.Equal(t, 2, w.in.services.queue.Len())
}

// TestServices_OfPoliciesWithoutEndpoints_EvaluateNone: a policy whose Service changes makes a round evaluate only the endpoints that it selects.
func TestServices_OfPoliciesWithoutEndpoints_EvaluateNone(t *testing.T) {
	t.Parallel()
	w := newBench(t, 2, 0)
	put(t, w.DB, w.serviceRows(), service("ns-0", "db", "app=x"), service("ns-1", "db", "app=x"))
	put(t, w.DB, w.ciliumRules(), toService("ns-0", "none", "none", 0), toService("ns-1", "one", "app-1", 0))
	w.step(t)
	for _, c := range []struct {
		namespace, name string
		marked          endpointfeed.Marks
	}{{"ns-0", "none", endpointfeed.Marks{}}, {"ns-1", "one", endpointfeed.Marks{2: true}}} {
		before := w.in.policies[policy.Ref{Kind: policy.Cilium, Namespace: c.namespace, Name: c.name}]
		put(t, w.DB, w.serviceRows(), service(c.namespace, "db", "app=y"))
		w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
		require.NotSame(t, before, w.in.policies[before.Ref])
		require.Equal(t, c.marked, w.in.marked, c.namespace)
		w.step(t)
	}
}

// TestServices_Pause: a Service that changes every millisecond causes a round every 100 ms. The first change after that time causes one at once.
func TestServices_Pause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 2, 0)
		put(t, w.DB, w.serviceRows(), service("a", "db", "app=x"))
		for i := range 4 {
			put(t, w.DB, w.ciliumRules(), toService("a", fmt.Sprint("p-", i), "none", servicePortion))
		}
		w.step(t)
		// round runs one round and waits for the next one, for the returned time.
		round := func() time.Duration {
			txn, changed, began := w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now()
			w.problems = nil
			w.in.read(txn, changed, began)
			again := w.pass(txn, changed)
			require.Empty(t, w.problems)
			require.True(t, w.wait(t.Context(), changed, again))
			return time.Since(began)
		}
		change := func(after time.Duration, selects string) {
			go func() {
				time.Sleep(after)
				put(t, w.DB, w.serviceRows(), service("a", "db", selects))
			}()
		}
		for i := range 1000 {
			change(time.Duration(i)*time.Millisecond, fmt.Sprint("app=", i))
		}
		rounds := 0
		for began := time.Now(); time.Since(began) < time.Second; rounds++ {
			round()
		}
		require.InDelta(t, 10, rounds, 2)

		synctest.Wait()
		drain := func() { // except for one policy
			for w.in.services.queue.Len() > 1 {
				require.Equal(t, servicePause, round())
			}
		}
		drain()
		change(servicePause+time.Second, "app=late")
		require.Equal(t, servicePause+time.Second, round(), "nothing is queued")
		drain()
		change(servicePause/2, "app=x")
		require.Equal(t, servicePause, round(), "queued after the last portion")
	})
}
