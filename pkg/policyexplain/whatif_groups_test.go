package policyexplain

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

// TestWhatIf_GroupChanges: a changed group changes the policies of the node that refer to it, even if the file does not contain them.
func TestWhatIf_GroupChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	group := &cilium.CIDRGroup{Name: "partner", CIDRs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	insert(t, f.tables.DB, f.tables.Environment.CIDRGroups.(statedb.RWTable[*cilium.CIDRGroup]), group)
	object := &cilium.Policy{Namespace: "shop", Name: "partner", Spec: []byte(`{"endpointSelector": {"matchLabels": {"app": "free"}}, "ingress": [{"fromCIDRSet": [{"cidrGroupRef": "partner"}]}]}`)}
	objects := made(t, f.tables.DB, cilium.NewPolicyTable)
	insert(t, f.tables.DB, objects, object)
	f.tables.CiliumPolicies = objects
	env := f.tables.Environment.Read(f.tables.DB.ReadTxn(), statedb.NewWatchSet())
	env.CIDRGroups = f.tables.Environment.Groups(f.tables.DB.ReadTxn())
	insert(t, f.tables.DB, f.policies, &policies.Policy{Policy: policy.FromCilium(object, env)})
	for i, src := range []string{"203.0.113.7", "198.51.100.9"} {
		insert(t, f.tables.DB, f.flows, &flows.Flow{Endpoint: freeID, Direction: policy.Ingress, Protocol: policy.ProtocolTCP, Port: 80, Src: netip.MustParseAddr(src),
			Dst: netip.MustParseAddr("10.0.0.3"), Peer: identity.WorldIPv4, Count: uint64(i + 1), First: time.Unix(1, 0), Last: time.Unix(2, 0)})
	}
	const changed = "{apiVersion: cilium.io/v2, kind: CiliumCIDRGroup, metadata: {name: partner}, spec: {externalCIDRs: [198.51.100.0/24]}}"
	d, err := f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: changed}, f.flows)
	if err != nil || len(d.Denied) != 1 || d.Denied[0].Count != 1 || len(d.Allowed) != 1 || d.Allowed[0].Count != 2 {
		t.Errorf("%v, %+v", err, d)
	}
	if len(d.Replaced)+len(d.Added)+len(d.Problems) != 0 {
		t.Errorf("%+v", d)
	}
	if d, err = f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: changed, Delete: []string{"shop/partner"}}, f.flows); err != nil || len(d.Denied) != 0 || len(d.Allowed) != 1 {
		t.Errorf("without the policy: %v, %+v", err, d)
	}
}
