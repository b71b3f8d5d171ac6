package policymaps

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// rulesOf returns a policy with rules for egress of the pods of a namespace with a label.
func rulesOf(namespace, name, app, rules string) *cilium.Policy {
	return &cilium.Policy{Namespace: namespace, Name: name, Spec: json.RawMessage(`{"endpointSelector": {"matchLabels": {"app": "` + app + `"}}, ` + rules + `}`)}
}

func (w *bench) sliceRows() statedb.RWTable[*k8s.EndpointSlice] {
	return w.Slices.(statedb.RWTable[*k8s.EndpointSlice])
}

// sliceOf returns a slice of a Service with n addresses from 203.0.113.0.
func sliceOf(namespace, name, service string, n int) *k8s.EndpointSlice {
	s := &k8s.EndpointSlice{Namespace: namespace, Name: name, Service: service, AddressType: "IPv4"}
	addr := netip.MustParseAddr("203.0.113.0")
	for range n {
		s.Endpoints = append(s.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{addr}})
		addr = addr.Next()
	}
	return s
}

// passOverNext waits for a change of Services or slices, and reports whether it causes no round.
func (w *bench) passOverNext(t *testing.T, changed *statedb.WatchSet) bool {
	t.Helper()
	for {
		closed, err := changed.Wait(t.Context(), 0)
		require.NoError(t, err)
		if w.in.services.isOf(closed[0]) { // without a slice of the API server, its channel closes as well
			return w.in.passOver(closed[0], changed)
		}
	}
}

// TestServices_Slices_CauseRoundsOnlyForTheirServices: slices of other Services, and slices of Services with a selector, cause no round. Nothing is kept of slices
// of other Services.
func TestServices_Slices_CauseRoundsOnlyForTheirServices(t *testing.T) {
	t.Parallel()
	w := newBench(t, 2, 0)
	p := toService("ns-0", "to-db", "app-0", 0)
	ref := policy.Ref{Kind: policy.Cilium, Namespace: "ns-0", Name: "to-db"}
	put(t, w.DB, w.serviceRows(), service("ns-0", "db", ""), service("ns-0", "pods", "app=app-1"))
	put(t, w.DB, w.sliceRows(), sliceOf("ns-0", "db-1", "db", 1))
	put(t, w.DB, w.ciliumRules(), p, rulesOf("ns-0", "to-pods", "app-0", `"egress": [{"toServices": [{"k8sService": {"serviceName": "pods"}}]}]`))
	w.step(t)
	parsed, changed := w.in.policies[ref], statedb.NewWatchSet()
	require.Empty(t, parsed.Problems)
	require.Len(t, parsed.Parts[0].Rules[0].Peers.List, 1, "the slice existed before the policy")
	w.in.read(w.DB.ReadTxn(), changed, time.Now())

	put(t, w.DB, w.sliceRows(), sliceOf("ns-0", "other-1", "other", 3))
	require.True(t, w.passOverNext(t, changed), "another Service")
	put(t, w.DB, w.sliceRows(), sliceOf("ns-1", "db-1", "db", 3))
	require.True(t, w.passOverNext(t, changed), "another namespace")
	put(t, w.DB, w.sliceRows(), sliceOf("ns-0", "pods-1", "pods", 3))
	require.True(t, w.passOverNext(t, changed), "a Service with a selector")
	ready := sliceOf("ns-0", "db-1", "db", 1)
	ready.Endpoints[0].Ready = true
	put(t, w.DB, w.sliceRows(), ready)
	require.True(t, w.passOverNext(t, changed), "another condition")
	require.Len(t, w.in.services.ofSlice, 2)
	w.once(t)
	require.Same(t, parsed, w.in.policies[ref], "the policy was parsed again")

	for _, s := range []*k8s.EndpointSlice{sliceOf("ns-0", "db-1", "db", 2), sliceOf("ns-0", "db-2", "db", 3), sliceOf("ns-0", "other-1", "db", 4)} {
		changed = statedb.NewWatchSet()
		w.in.read(w.DB.ReadTxn(), changed, time.Now())
		put(t, w.DB, w.sliceRows(), s)
		w.in.services.next = time.Time{} // no pause
		require.False(t, w.passOverNext(t, changed), s.Name)
		w.once(t)
		require.Empty(t, w.in.policies[ref].Problems)
	}
	require.Len(t, w.in.policies[ref].Parts[0].Rules[0].Peers.List, 4, "the addresses of all slices, each once")
	require.Len(t, w.in.services.ofSlice, 4)

	remove(t, w.DB, w.ciliumRules(), p)
	w.once(t)
	require.Len(t, w.in.services.ofSlice, 1, "the slice of the Service with a selector")
	require.Zero(t, w.in.services.byAddresses)
}

// TestServices_Selectors_FollowTheirNamespace: a Service of the namespace that appears or gets other labels changes a policy only if its selector chooses it.
func TestServices_Selectors_FollowTheirNamespace(t *testing.T) {
	t.Parallel()
	w := newBench(t, 2, 0)
	p := rulesOf("ns-0", "to-gold", "app-0", `"egress": [{"toServices": [{"k8sServiceSelector": {"selector": {"matchLabels": {"plan": "gold"}}}}]}]`)
	ref := policy.Ref{Kind: policy.Cilium, Namespace: "ns-0", Name: "to-gold"}
	labelled := func(namespace, name, labels string) *k8s.Service {
		s := service(namespace, name, "app=app-1")
		s.Labelled = labels
		return s
	}
	put(t, w.DB, w.serviceRows(), labelled("ns-0", "db", "plan=gold"), labelled("ns-0", "plain", "plan=basic"))
	put(t, w.DB, w.ciliumRules(), p)
	w.step(t)
	parsed := w.in.policies[ref]
	require.Equal(t, []policy.ServiceName{{Namespace: "ns-0", Name: "db"}}, parsed.Services)
	require.Equal(t, len("db")+len("plan=gold")+len("plain")+len("plan=basic"), w.in.services.labelBytes("ns-0"))

	changed := statedb.NewWatchSet()
	w.in.read(w.DB.ReadTxn(), changed, time.Now())
	put(t, w.DB, w.serviceRows(), labelled("ns-1", "db", "plan=gold"))
	require.True(t, w.passOverNext(t, changed), "another namespace")
	same := labelled("ns-0", "plain", "plan=basic")
	same.Ports = []k8s.ServicePort{{Protocol: "TCP", Port: 80}}
	put(t, w.DB, w.serviceRows(), same)
	require.True(t, w.passOverNext(t, changed), "the same labels")
	put(t, w.DB, w.serviceRows(), labelled("ns-0", "late", "plan=basic"))
	require.False(t, w.passOverNext(t, changed), "a new Service")
	clear(w.in.marked)
	w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
	require.Same(t, parsed, w.in.policies[ref], "the selector does not choose it")
	require.Empty(t, w.in.marked, "no endpoint is affected")

	put(t, w.DB, w.serviceRows(), labelled("ns-0", "late", "owner=a,plan=gold"))
	w.once(t)
	require.Len(t, w.in.policies[ref].Services, 2)
	remove(t, w.DB, w.serviceRows(), labelled("ns-0", "db", ""))
	w.once(t)
	require.Equal(t, []policy.ServiceName{{Namespace: "ns-0", Name: "late"}}, w.in.policies[ref].Services)
	require.Len(t, w.in.services.referred, 1)
	remove(t, w.DB, w.ciliumRules(), p)
	w.once(t)
	require.Empty(t, w.in.services.referred)
	require.Empty(t, w.in.services.namespaces)
}

// TestServices_LabelsCountInPortions: the labels of a large namespace fill a portion.
func TestServices_LabelsCountInPortions(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 0)
	for i := range 100 {
		s := service("a", fmt.Sprint("s-", i), "app=x")
		s.Labelled = "plan=" + strings.Repeat("x", servicePortion/100)
		put(t, w.DB, w.serviceRows(), s)
	}
	for i := range 3 {
		put(t, w.DB, w.ciliumRules(), rulesOf("a", fmt.Sprint("p-", i), "none", `"egress": [{"toServices": [{"k8sServiceSelector": {"selector": {"matchLabels": {"plan": "gold"}}}}]}]`))
	}
	w.step(t)
	s := service("a", "gold", "app=x")
	s.Labelled = "plan=gold"
	put(t, w.DB, w.serviceRows(), s)
	w.once(t)
	require.Equal(t, 2, w.in.services.queue.Len())
}

// TestServices_ManyAddresses_DenyOutside: a deny of a Service with more addresses than policies support denies all addresses outside the cluster.
func TestServices_ManyAddresses_DenyOutside(t *testing.T) {
	t.Parallel()
	w := newBench(t, 2, 0)
	ref := policy.Ref{Kind: policy.Cilium, Namespace: "ns-0", Name: "deny"}
	put(t, w.DB, w.serviceRows(), service("ns-0", "db", ""))
	put(t, w.DB, w.sliceRows(), sliceOf("ns-0", "db-1", "db", 1))
	put(t, w.DB, w.ciliumRules(), rulesOf("ns-0", "deny", "app-0", `"egress": [{"toEntities": ["all"]}], "egressDeny": [{"toServices": [{"k8sService": {"serviceName": "db", "namespace": "ns-0"}}]}]`))
	w.step(t)
	allowed := func(address string) bool {
		_, egress := w.in.resolver.Compile(1)
		peer := w.in.resolver.Peer(2, netip.MustParseAddr(address))
		return egress.Enforced.Lookup(policycompiler.Peer{Identity: peer.Identity, CIDRs: peer.CIDRs, Outside: true}, policy.ProtocolTCP, 80).Allowed
	}
	require.Empty(t, w.problemsOf(t, ref))
	require.False(t, allowed("203.0.113.0"))
	require.True(t, allowed("198.51.100.1"))

	put(t, w.DB, w.sliceRows(), sliceOf("ns-0", "db-2", "db", 1001))
	w.step(t)
	require.Len(t, w.problemsOf(t, ref), 1)
	require.False(t, allowed("203.0.113.0"))
	require.False(t, allowed("198.51.100.1"))

	put(t, w.DB, w.sliceRows(), sliceOf("ns-0", "db-2", "db", 2))
	w.step(t)
	require.Empty(t, w.problemsOf(t, ref))
	require.False(t, allowed("203.0.113.1"))
	require.True(t, allowed("203.0.113.2"))
}

// TestQuota_CountsAddressesOfServices: the addresses of a Service without a selector count towards the quota of the namespaces whose policies refer to it.
func TestQuota_CountsAddressesOfServices(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.cidrs.capacity = 1 << 16
	w.Config.NamespaceCIDRs = 20
	tenant := policy.Ref{Kind: policy.Cilium, Namespace: "ns-5", Name: "refers"}
	put(t, w.DB, w.serviceRows(), service("ns-6", "large", ""))
	put(t, w.DB, w.sliceRows(), sliceOf("ns-6", "large-1", "large", 30))
	put(t, w.DB, w.ciliumRules(), rulesOf("ns-5", "refers", "app-5", `"egress": [{"toServices": [{"k8sService": {"serviceName": "large", "namespace": "ns-6"}}]}]`))
	w.step(t)
	_, ranges := w.cost()
	require.Equal(t, 20, ranges)
	problems := w.problemsOf(t, tenant)
	require.Len(t, problems, 1)
	require.True(t, strings.HasPrefix(problems[0].Message, "10 of its address ranges are not in force"), problems[0].Message)

	put(t, w.DB, w.sliceRows(), sliceOf("ns-6", "large-1", "large", 5))
	w.step(t)
	require.Empty(t, w.problemsOf(t, tenant))
}
