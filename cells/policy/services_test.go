package policy

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Services and slices change often in a large cluster. They cause no round while no policy refers to Services, and change no policy that does not mean them.
func TestServices_OfNoPolicy_CauseNoRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 10, 0)
		rules, rows := w.CiliumPolicies.(statedb.RWTable[*cilium.Policy]), w.Services.(statedb.RWTable[*k8s.Service])
		parts := w.Slices.(statedb.RWTable[*k8s.EndpointSlice])
		slice := func(namespace, service, addr string) *k8s.EndpointSlice {
			return &k8s.EndpointSlice{Namespace: namespace, Name: service + "-1", Service: service, Endpoints: []k8s.SliceEndpoint{{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}}}
		}
		woken := func(change func()) bool {
			changed := statedb.NewWatchSet()
			w.in.read(w.DB.ReadTxn(), changed, time.Now())
			change()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			closed, _ := changed.Wait(ctx, 0)
			return len(closed) > 0
		}
		put(t, w.DB, parts, &k8s.EndpointSlice{Namespace: "default", Name: "kubernetes"}, slice("ns-5", "bank", "203.0.113.1"), slice("ns-5", "web", "203.0.113.2"))
		w.step(t)
		require.False(t, woken(func() {
			put(t, w.DB, rows, &k8s.Service{Namespace: "ns-5", Name: "bank"})
			put(t, w.DB, parts, slice("ns-5", "bank", "203.0.113.3"))
		}))

		refers := &cilium.Policy{Namespace: "ns-5", Name: "p", Spec: json.RawMessage(`{"endpointSelector": {}, "egress": [{"toServices": [{"k8sService": {"serviceName": "bank"}}]}]}`)}
		put(t, w.DB, rules, refers)
		w.step(t)
		_, ranges := w.cost()
		require.Equal(t, 1, ranges)
		differs := func() bool { // policies mean something else
			w.in.all = false
			w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
			return w.in.all
		}
		put(t, w.DB, parts, slice("ns-5", "web", "203.0.113.4"))
		require.False(t, differs())
		require.True(t, woken(func() { put(t, w.DB, parts, slice("ns-5", "bank", "203.0.113.5")) }))
		require.True(t, differs())
		require.True(t, woken(func() { put(t, w.DB, rows, &k8s.Service{Namespace: "ns-5", Name: "bank", AllLabels: "a=b"}) }))
		require.False(t, differs(), "labels of a Service that is named do not matter")

		txn := w.DB.WriteTxn(rules)
		_, _, err := rules.Delete(txn, refers)
		require.NoError(t, err)
		txn.Commit()
		w.step(t)
		require.False(t, woken(func() { put(t, w.DB, rows, &k8s.Service{Namespace: "ns-5", Name: "bank"}) }))
		require.Nil(t, w.in.services.feed)
	})
}
