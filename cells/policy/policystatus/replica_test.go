package policystatus

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// others is a condition of another program.
var others = ciliumv2.PolicyCondition{Type: "Other", Status: "Unknown"}

// Specs of policies: plain can be enforced completely; seven has a rule about HTTP requests, which is not enforced.
const (
	plain = `{"endpointSelector": {}, "ingress": [{"fromEntities": ["world"]}]}`
	seven = `{"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"method": "GET"}]}}]}]}`
)

func ciliumPolicy(name, spec string) *ciliumv2.CiliumNetworkPolicy {
	return &ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: json.RawMessage(spec),
		Status: ciliumv2.PolicyStatus{Conditions: []ciliumv2.PolicyCondition{others}}}
}

func kubernetesPolicy(name string, labels map[string]string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: networkingv1.NetworkPolicySpec{
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			PodSelector: &metav1.LabelSelector{MatchLabels: labels}}}}}}}
}

func cells(client *kubeapi.Client) []cell.Cell {
	tested := cell.Module("policy-status", "Under test", cell.ProvidePrivate(func() servicePause { return 0 }), implementation)
	return []cell.Cell{tested, cell.Provide(func() *kubeapi.Client { return client }),
		cell.Provide(leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable)}
}

// replica is a running cell that leads.
type replica struct {
	db     *statedb.DB
	leader statedb.RWTable[leadership.Leadership]
}

func start(t *testing.T, s *kubetest.Server) *replica {
	t.Helper()
	r := &replica{}
	h := hive.New(append(cells(s.Client(t)), celltest.Infrastructure(),
		cell.Invoke(func(db *statedb.DB, leader statedb.RWTable[leadership.Leadership]) { r.db, r.leader = db, leader }))...)
	log := slog.New(slog.DiscardHandler)
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.lead(t, true)
	return r
}

func (r *replica) lead(t *testing.T, leads bool) {
	t.Helper()
	row := leadership.Leadership{Lease: "x"}
	if leads {
		row.Until = time.Now().Add(time.Hour)
	}
	txn := r.db.WriteTxn(r.leader)
	defer txn.Abort()
	if _, _, err := r.leader.Insert(txn, row); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
}

// condition returns the condition Valid of a policy, and the number of all its conditions.
func condition(s *kubetest.Server, name string) (found ciliumv2.PolicyCondition, all int) {
	var o ciliumv2.CiliumNetworkPolicy
	s.Get(kubeapi.CiliumNetworkPolicies, "x", name, &o)
	for _, c := range o.Status.Conditions {
		if c.Type == ciliumv2.PolicyValid {
			found = c
		}
	}
	return found, len(o.Status.Conditions)
}

func count(s *kubetest.Server, verb, resource string) (n int) {
	for _, r := range s.Requests() {
		if r.Verb == verb && strings.TrimSuffix(r.Resource+"/"+r.Subresource, "/") == resource {
			n++
		}
	}
	return n
}

const (
	patched = "ciliumnetworkpolicies.cilium.io/status"
	events  = "events"
)
