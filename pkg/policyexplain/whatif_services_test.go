package policyexplain

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestWhatIf_Services: a policy of the file means the pods of the cluster's Services.
func TestWhatIf_Services(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	insert(t, f.tables.DB, f.tables.Environment.Services.(statedb.RWTable[*k8s.Service]), &k8s.Service{Namespace: "shop", Name: "front", Type: "ClusterIP", Selects: "app=web"})
	for dst, peer := range map[string]uint32{"10.0.0.1": 301, "10.0.0.2": 302} {
		insert(t, f.tables.DB, f.flows, &flows.Flow{Endpoint: freeID, Direction: policy.Egress, Protocol: policy.ProtocolTCP, Port: 80, Src: netip.MustParseAddr("10.0.0.3"),
			Dst: netip.MustParseAddr(dst), Peer: peer, Count: uint64(peer), First: time.Unix(1, 0), Last: time.Unix(2, 0)})
	}
	d, err := f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: to-front, namespace: shop}, " +
		"spec: {endpointSelector: {matchLabels: {app: free}}, egress: [{toServices: [{k8sService: {serviceName: front}}]}]}}"}, f.flows)
	if err != nil || len(d.Problems) != 0 || len(d.Allowed) != 0 || len(d.Denied) != 1 || d.Denied[0].Count != 302 {
		t.Fatalf("%v, %+v", err, d)
	}
	if !strings.Contains(d.Denied[0].Text, "k8s:app=web") {
		t.Errorf("the reason: %s", d.Denied[0].Text)
	}
}
